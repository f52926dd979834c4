// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <ctime>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "broker/clock.h"
#include "broker/unique_fd.h"
#include "ctl/client.h"
#include "ctl/commands.h"
#include "ctl/slice_json.h"
#include "ctl/snapshot.h"
#include "ctl/table.h"
#include "ctl/top_table.h"

namespace ctl {
namespace {

constexpr size_t kPlainWidth = 80;

struct Size {
  size_t rows, columns;
};

Sample take_sample(const broker::RunDirectory& directory) {
  Sample sample;
  Client client(directory);
  v1::ListSlicesResponse listed;
  sample.broker = client.get_node(&sample.node);
  if (sample.broker.ok()) sample.broker = client.list(&listed);
  for (const v1::Slice& slice : listed.slices()) sample.handover_ns[slice.id()] = slice.handover_ns();
  std::vector<std::string> unreadable;
  for (SliceView& slice : read_slices(directory, &unreadable)) sample.slices[slice.id] = std::move(slice);
  return sample;
}

std::string gpu_line(const v1::Gpu& gpu) {
  constexpr size_t kNameWidth = 16;
  constexpr std::string_view kVendor = "NVIDIA ";
  const std::string name = gpu.name().substr(gpu.name().starts_with(kVendor) ? kVendor.size() : 0);
  std::ostringstream line;
  line << "GPU " << gpu.index() << " " << fit(name, std::min(name.size(), kNameWidth)) << "  "
       << used_of_quota(gpu.used_bytes(), gpu.device_bytes()) << "  busy " << gpu.busy_percent()
       << " %  free " << broker::format_bytes(gpu.free_bytes()) << ", " << gpu.free_compute()
       << " % of compute";
  return line.str();
}

std::string broker_state(const broker::RunDirectory& directory, const Sample& now) {
  if (now.broker.ok()) return "broker " + std::to_string(now.node.broker_pid());
  if (now.broker.failure == Failure::kNoBroker) return "no broker on " + directory.socket();
  return "broker cannot be asked (see cuslicectl ls)";
}

std::vector<std::string> screen(const broker::RunDirectory& directory, const Sample& before,
                                const Sample& now, const TopOptions& options, size_t width) {
  const time_t seconds = time(nullptr);
  tm local = {};
  localtime_r(&seconds, &local);
  char clock[16];
  strftime(clock, sizeof clock, "%T", &local);

  std::vector<std::string> lines;
  lines.push_back(std::string("cuslicectl top  ") + clock + "  " + std::to_string(now.slices.size()) +
                  " slices  " + broker_state(directory, now));
  for (const v1::Gpu& gpu : now.node.gpus()) lines.push_back(gpu_line(gpu));
  lines.emplace_back();
  for (std::string& line : slice_table(before, now, options, width)) lines.push_back(std::move(line));
  return lines;
}

Size terminal_size() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0)
    return {24, kPlainWidth};
  return {size.ws_row, size.ws_col};
}

// The terminal while we draw on it: other screen, no cursor, keys at once. Put back in every way that ends
// with the destructor; signals come through a descriptor, so that they do.
class Terminal {
 public:
  Terminal() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_.reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    keys_ = tcgetattr(STDIN_FILENO, &before_) == 0;
    if (keys_) {
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    put("\x1b[?1049h\x1b[?25l");
  }

  ~Terminal() {
    put("\x1b[?25h\x1b[?1049l");
    if (keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }

  void draw(std::vector<std::string> lines) {
    const Size size = terminal_size();
    if (lines.size() > size.rows) {
      lines.resize(size.rows);
      lines.back() = "... (t: memory or time, s: order, q: quit)";
    }
    std::string frame = "\x1b[H";
    for (size_t i = 0; i < lines.size(); ++i) {
      frame += (i > 0 ? "\r\n" : "") + lines[i].substr(0, size.columns) + "\x1b[K";
    }
    put(frame + "\x1b[J");
  }

  enum class Event : unsigned char { kTime, kResized, kView, kSort, kQuit };
  Event wait(uint64_t until_ns) {
    const uint64_t now = broker::now_ns();
    const int timeout_ms = until_ns <= now ? 0 : static_cast<int>((until_ns - now) / 1'000'000 + 1);
    pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {keys_ ? STDIN_FILENO : -1, POLLIN, 0}};
    if (poll(fds, 2, timeout_ms) <= 0) return Event::kTime;
    signalfd_siginfo signal = {};
    if (read(signals_.get(), &signal, sizeof signal) == sizeof signal) {
      return signal.ssi_signo == SIGWINCH ? Event::kResized : Event::kQuit;
    }
    char key = 0;
    const ssize_t got = read(STDIN_FILENO, &key, 1);
    if (got == 0) keys_ = false;
    if (got != 1) return Event::kTime;
    switch (key) {
      case 'q':
      case 'Q':
        return Event::kQuit;
      case 't':
        return Event::kView;
      case 's':
        return Event::kSort;
      default:
        return Event::kTime;
    }
  }

 private:
  static void put(const std::string& text) {
    [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
  }

  broker::UniqueFd signals_;
  termios before_ = {};
  bool keys_ = false;
};

void print_plain(const std::vector<std::string>& lines) {
  for (std::string line : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << "\n";
  }
  std::cout << std::flush;
}

// What became of the slice during the interval. A figure that fell belongs to another slice of the same name.
nlohmann::json interval_json(const SliceView& before, const SliceView& now, uint64_t handover_ns) {
  nlohmann::json json = {{"ns", now.sampled_ns - before.sampled_ns}};
  const double received = received_percent(before, now);
  json["received_percent"] = received < 0 || now.open ? nlohmann::json() : nlohmann::json(received);
  json["waited_ns"] = now.waited_ns - std::min(before.waited_ns, now.waited_ns);
  json["turns"] = now.turns - std::min(before.turns, now.turns);
  json["overruns"] = now.overruns - std::min(before.overruns, now.overruns);
  json["handover_ns"] = handover_ns;
  return json;
}

void print_json(const Sample& before, const Sample& now) {
  nlohmann::json json = {{"time", time(nullptr)},
                         {"broker_answers", now.broker.ok()},
                         {"gpus", nlohmann::json::array()},
                         {"slices", nlohmann::json::array()}};
  for (const v1::Gpu& gpu : now.node.gpus()) {
    json["gpus"].push_back({{"index", gpu.index()},
                            {"uuid", gpu.uuid()},
                            {"used_bytes", gpu.used_bytes()},
                            {"busy_percent", gpu.busy_percent()},
                            {"free_bytes", gpu.free_bytes()},
                            {"free_compute", gpu.free_compute()}});
  }
  for (const auto& [id, slice] : now.slices) {
    nlohmann::json entry = to_json(slice);
    const auto earlier = before.slices.find(id);
    if (earlier != before.slices.end()) {
      entry["interval"] = interval_json(earlier->second, slice, handover_ns_between(before, now, id));
    }
    json["slices"].push_back(std::move(entry));
  }
  std::cout << json.dump() << std::endl;
}

void sleep_until(uint64_t until_ns) {
  const timespec time = {static_cast<time_t>(until_ns / 1'000'000'000),
                         static_cast<long>(until_ns % 1'000'000'000)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
}

}  // namespace

int top(const broker::RunDirectory& directory, const TopOptions& options) {
  const auto interval_ns = static_cast<uint64_t>(options.interval_seconds * 1e9);
  Sample before = take_sample(directory);
  if (options.once || options.json || isatty(STDOUT_FILENO) == 0) {
    for (;;) {
      sleep_until(broker::now_ns() + interval_ns);
      Sample now = take_sample(directory);
      if (options.json) {
        print_json(before, now);
      } else {
        print_plain(screen(directory, before, now, options, kPlainWidth));
      }
      if (options.once) return 0;
      if (!std::cout) return 1;
      if (!options.json) std::cout << "\n";
      before = std::move(now);
    }
  }

  Terminal terminal;
  TopOptions shown_as = options;
  Sample shown = before;
  uint64_t next_ns = broker::now_ns() + std::min<uint64_t>(interval_ns, 250'000'000);
  for (;;) {
    terminal.draw(screen(directory, before, shown, shown_as, terminal_size().columns));
    switch (terminal.wait(next_ns)) {
      case Terminal::Event::kQuit:
        return 0;
      case Terminal::Event::kResized:
        break;
      case Terminal::Event::kView:
        shown_as.time = !shown_as.time;
        break;
      case Terminal::Event::kSort:
        shown_as.sort = next(shown_as.sort);
        break;
      case Terminal::Event::kTime:
        if (broker::now_ns() < next_ns) break;
        before = std::move(shown);
        shown = take_sample(directory);
        next_ns = broker::now_ns() + interval_ns;
        break;
    }
  }
}

}  // namespace ctl
