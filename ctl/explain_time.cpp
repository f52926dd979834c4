// SPDX-License-Identifier: Apache-2.0
//
// What the slice gets of the GPU's time, and what keeps it from the rest.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ctl/explain.h"
#include "ctl/table.h"

namespace ctl {
namespace {

constexpr auto kRight = Table::Align::kRight;
// Less than this part of the time is not worth a verdict.
constexpr double kNotable = 0.05;

std::string format_seconds(uint64_t ns) {
  char text[32];
  snprintf(text, sizeof text, "%.2f s", static_cast<double>(ns) / 1e9);
  return text;
}

std::string format_ms(uint64_t ns) {
  char text[32];
  snprintf(text, sizeof text, "%.1f ms", static_cast<double>(ns) / 1e6);
  return text;
}

double part(uint64_t ns, const v1::TimeWindow& window) {
  return static_cast<double>(ns) / static_cast<double>(std::max<uint64_t>(window.span_ns(), 1));
}

std::string format_part(uint64_t ns, const v1::TimeWindow& window) {
  return format_percent(100 * part(ns, window));
}

std::string name_of(const v1::Neighbour& neighbour) {
  return neighbour.id().empty() ? "a slice that has gone" : printable(neighbour.id());
}

uint64_t delay_ns(const v1::Neighbour& neighbour) { return neighbour.waited_ns() + neighbour.beside_ns(); }

// The most delaying one first.
std::vector<v1::Neighbour> neighbours_of(const v1::TimeWindow& window) {
  std::vector<v1::Neighbour> neighbours(window.neighbours().begin(), window.neighbours().end());
  std::stable_sort(neighbours.begin(), neighbours.end(),
                   [](const v1::Neighbour& a, const v1::Neighbour& b) { return delay_ns(a) > delay_ns(b); });
  return neighbours;
}

struct Verdict {
  const char* name;  // for machines
  std::string text;
};

// The greatest of what kept it from running.
Verdict judge(const v1::TimeWindow& window) {
  const std::vector<v1::Neighbour> neighbours = neighbours_of(window);
  uint64_t others_ns = 0, late_ns = 0;
  for (const v1::Neighbour& neighbour : neighbours) {
    others_ns += delay_ns(neighbour);
    late_ns += neighbour.late_ns();
  }
  const uint64_t greatest_ns = std::max({window.open_ns(), window.idle_ns(), window.capped_ns(),
                                         window.handover_ns(), window.gaps_ns(), others_ns});
  if (part(greatest_ns, window) < kNotable) return {"runs", "it runs almost all the time"};
  if (greatest_ns == window.open_ns()) {
    return {"open", "it shares its GPU with no other slice and has no cap: nothing holds its launches back"};
  }
  if (greatest_ns == window.idle_ns()) {
    return {"own_launches",
            "its own launches come too slowly: it could have run, and had nothing for the GPU; look at what "
            "its programs do between kernels"};
  }
  if (greatest_ns == window.capped_ns()) return {"cap", "its own cap holds it: raise --compute-limit"};
  if (greatest_ns == window.handover_ns()) {
    return {"handover", "turns change hands too often or too slowly: are the node's processors busy?"};
  }
  if (greatest_ns == window.gaps_ns()) {
    return {"gaps",
            "its kernels are short or wait for each other: work was under way, and the GPU did not run it"};
  }
  if (2 * late_ns > others_ns) {
    const auto latest =
        std::max_element(neighbours.begin(), neighbours.end(),
                         [](const auto& a, const auto& b) { return a.late_ns() < b.late_ns(); });
    return {"overruns", "turns of " + name_of(*latest) + " end late, by up to " +
                            format_ms(latest->longest_late_ns()) +
                            ": its kernels are longer than a turn; it is charged for that"};
  }
  return {"neighbours", "it waits for its neighbours, most for " + name_of(neighbours.front()) +
                            ": raise --compute if it should get more"};
}

nlohmann::json to_json(const v1::TimeWindow& window) {
  nlohmann::json json = {{"span_ns", window.span_ns()},          {"open_ns", window.open_ns()},
                         {"idle_ns", window.idle_ns()},          {"received_ns", window.received_ns()},
                         {"capped_ns", window.capped_ns()},      {"handover_ns", window.handover_ns()},
                         {"gaps_ns", window.gaps_ns()},          {"verdict", judge(window).name},
                         {"neighbours", nlohmann::json::array()}};
  for (const v1::Neighbour& neighbour : neighbours_of(window)) {
    json["neighbours"].push_back({{"id", neighbour.id()},
                                  {"waited_ns", neighbour.waited_ns()},
                                  {"late_ns", neighbour.late_ns()},
                                  {"late_turns", neighbour.late_turns()},
                                  {"longest_late_ns", neighbour.longest_late_ns()},
                                  {"beside_ns", neighbour.beside_ns()}});
  }
  return json;
}

void print_windows(const v1::ExplainTimeResponse& time) {
  std::vector<Table::Column> columns = {{"  PERCENT OF THE LAST"}};
  for (const v1::TimeWindow& window : time.windows())
    columns.push_back({format_seconds(window.span_ns()), kRight});
  Table table(std::move(columns));
  const auto add = [&](const std::string& what, auto ns_of) {
    std::vector<std::string> cells = {"  " + what};
    uint64_t sum_ns = 0;
    for (const v1::TimeWindow& window : time.windows()) {
      const uint64_t ns = ns_of(window);
      sum_ns += ns;
      cells.push_back(format_part(ns, window));
    }
    if (sum_ns != 0) table.add(std::move(cells));
  };
  add("received", [](const auto& window) { return window.received_ns(); });
  add("had nothing to run", [](const auto& window) { return window.idle_ns(); });
  add("held by its cap", [](const auto& window) { return window.capped_ns(); });
  // Who is in the last, longest window is in the others as well.
  for (const v1::Neighbour& neighbour : neighbours_of(*time.windows().rbegin())) {
    const auto from = [&](const v1::TimeWindow& window, auto ns_of) -> uint64_t {
      for (const v1::Neighbour& other : window.neighbours()) {
        if (other.id() == neighbour.id()) return ns_of(other);
      }
      return 0;
    };
    const std::string name = name_of(neighbour);
    add("waited for " + name, [&](const auto& window) {
      return from(window, [](const v1::Neighbour& other) { return other.waited_ns(); });
    });
    add("  of that, late", [&](const auto& window) {
      return from(window, [](const v1::Neighbour& other) { return other.late_ns(); });
    });
    add("shared with " + name, [&](const auto& window) {
      return from(window, [](const v1::Neighbour& other) { return other.beside_ns(); });
    });
  }
  add("turns changed hands", [](const auto& window) { return window.handover_ns(); });
  add("between its kernels", [](const auto& window) { return window.gaps_ns(); });
  add("gate open, not measured", [](const auto& window) { return window.open_ns(); });
  std::cout << table.text();
  for (const v1::TimeWindow& window : time.windows()) {
    std::cout << "  over " << format_seconds(window.span_ns()) << ": " << judge(window).text << "\n";
  }
}

// What is known without the broker: of the last minute, what it asked for and what it got.
void explain_rates(const SliceView& slice) {
  if (slice.open) {
    std::cout << "  shares its GPU with no other slice and has no cap: nothing holds its launches back\n";
    return;
  }
  if (!slice.rates_known) {
    std::cout << "  nothing to do in the last seconds, or no broker that measures\n";
    return;
  }
  Table table({{"  OVER THE LAST"}, {"HAD WORK/%", kRight}, {"RECEIVED/%", kRight}});
  for (int window = 0; window < shm::kRateWindows; ++window) {
    table.add({"  " + std::to_string(shm::kRateWindowsS[window]) + " s",
               format_percent(slice.wanted_rates[window]), format_percent(slice.received_rates[window])});
  }
  std::cout << table.text();
}

}  // namespace

nlohmann::json to_json(const v1::ExplainTimeResponse& time) {
  nlohmann::json json = nlohmann::json::array();
  for (const v1::TimeWindow& window : time.windows()) json.push_back(to_json(window));
  return json;
}

void explain_time(const SliceView& slice, const v1::ExplainTimeResponse& time) {
  std::cout << "\nGPU time: " << slice.compute_percent << " % guaranteed, at most "
            << slice.compute_limit_percent << " %" << (slice.priority ? ", latency class" : "")
            << "; the gate is " << slice.condition << "\n"
            << "  held " << format_seconds(slice.held_ns) << " in " << slice.turns << " turns, "
            << slice.overruns << " of them more than a quarter of a quantum too long\n"
            << "  waited " << format_seconds(slice.waited_ns) << " for turns\n";
  explain_rates(slice);
  if (time.windows_size() != 0) print_windows(time);
  if (slice.processes.empty()) return;
  Table table({{"  PID"}, {"NAME"}, {"CONTEXTS", kRight}, {"WAITING", kRight}, {"WORK"}});
  for (const ProcessView& process : slice.processes) {
    table.add({"  " + name_of(process), process.name, std::to_string(process.contexts),
               std::to_string(process.waiting), process.outstanding ? "under way" : ""});
  }
  std::cout << "\n" << table.text();
}

}  // namespace ctl
