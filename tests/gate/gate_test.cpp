// SPDX-License-Identifier: Apache-2.0
//
// Launches of real processes at a slice's gate, on a simulated GPU. The broker is played by the test, which
// writes the gate line itself. Run under simgpu; GPU times are simulated.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shm/segment.h"

namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

fs::path build_folder() {
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path().parent_path();
}

struct Outcome {
  int status = -1;  // as of waitpid
  std::string uuid;
  double kernels = 0;
  double wall_s = 0;
  std::string text;
  bool success() const { return status == 0 && text.find("EXIT-SUCCESS") != std::string::npos; }
};

// A tenant process, in a slice if there is one.
class Process {
 public:
  Process(const std::string& behaviour, double kernel_us, double seconds, const std::string& slice) {
    std::vector<std::string> arguments = {build_folder() / "bin/tests/gate_tenant", behaviour,
                                          std::to_string(kernel_us), std::to_string(seconds)};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::vector<std::string> added;
    if (!slice.empty()) {
      added = {"LD_PRELOAD=" + (build_folder() / "lib/libcuslice-cuda.so").string(),
               "CUSLICE_SLICE=" + slice};
    }
    std::vector<char*> environment;
    for (std::string& variable : added) environment.push_back(variable.data());
    for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
    environment.push_back(nullptr);

    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environment.data()) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_ends[1]);
    output_ = pipe_ends[0];
  }
  ~Process() {
    if (pid_ > 0) {
      kill();
      finish();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void kill() const { ::kill(pid_, SIGKILL); }

  Outcome finish() {
    Outcome outcome;
    char buffer[4096];
    for (ssize_t bytes; (bytes = read(output_, buffer, sizeof buffer)) > 0;) {
      outcome.text.append(buffer, static_cast<size_t>(bytes));
    }
    close(output_);
    waitpid(pid_, &outcome.status, 0);
    pid_ = -1;
    char uuid[33] = "";
    sscanf(outcome.text.c_str(), "%32s kernels=%lf wall_s=%lf", uuid, &outcome.kernels, &outcome.wall_s);
    outcome.uuid = uuid;
    return outcome;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

const std::string& gpu_uuid() {
  static const std::string uuid = Process("nothing", 1, 0, "").finish().uuid;
  return uuid;
}

class GateTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(gpu_uuid().size(), 32u) << "no simulated GPU: run under simgpu";
    std::string pattern = "/dev/shm/gate_test.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    shm::GpuTerms gpu = {};
    for (size_t i = 0; i < 16; ++i)
      gpu.uuid[i] = static_cast<uint8_t>(stoi(gpu_uuid().substr(2 * i, 2), nullptr, 16));
    gpu.device_bytes = gpu.quota_bytes = uint64_t{40} << 30;
    gpu.context_bytes = 512 << 20;
    const shm::SliceTerms terms = {"gate_test", &gpu, 1, 25, 100, 0};
    ASSERT_TRUE(shm::create(directory_.c_str(), terms, &limits_, &state_));
  }
  void TearDown() override {
    stop_turns();
    shm::detach(limits_);
    shm::detach(state_);
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }

  Outcome run(const std::string& behaviour, double kernel_us, double seconds) {
    return Process(behaviour, kernel_us, seconds, directory_).finish();
  }

  // --- The broker's part.

  void publish(shm::GateMode mode, uint64_t flag) {
    limits_->gate.mode = mode;
    limits_->gate.gate = shm::gate_word(flag, ++epoch_);
    limits_->gate.grant.fetch_add(1);
    syscall(SYS_futex, &limits_->gate.grant, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }
  void open() { publish(shm::kOpen, shm::kGateOpen); }
  void park() { publish(shm::kParked, shm::kGateShut); }
  void block() { publish(shm::kBlocked, shm::kGateShut); }
  void grant(uint64_t deadline_ns, uint64_t run_ahead_ns = 4'000'000) {
    limits_->gate.run_ahead_ns = run_ahead_ns;
    limits_->gate.others = shm::kOthersWait;
    limits_->gate.deadline_ns = deadline_ns;
    limits_->gate.turn.fetch_add(1);
    publish(shm::kTurn, shm::kGateShut);
  }
  void beat() { limits_->heartbeat.beat_ns = now_ns(); }

  // Turns of 5 ms, then parked for the rest of the period, until stopped.
  void start_turns(std::chrono::milliseconds period) {
    turning_ = true;
    turns_ = std::thread([this, period] {
      while (turning_) {
        beat();
        auto begin = std::chrono::steady_clock::now();
        grant(now_ns() + 5'000'000);
        std::this_thread::sleep_until(begin + 5ms);
        if (period > 5ms) {
          park();
          std::this_thread::sleep_until(begin + period);
        }
      }
    });
  }
  void stop_turns() {
    turning_ = false;
    if (turns_.joinable()) turns_.join();
  }

  // Of the newest process: slots are taken from the lowest on, and those of the dead are cleared by the next
  // one.
  const shm::Work& work() const {
    uint64_t newest = 0, newest_start = 0;
    for (uint64_t slot = 0; slot < 64; ++slot) {
      const shm::Slot& entry = state_->slots[slot];
      const uint32_t owner = entry.owner;
      const uint64_t start = shm::slot_value(entry.start_time, owner);
      if (shm::slot_state(owner) != shm::kSlotLive || start < newest_start) continue;
      newest = slot;
      newest_start = start;
    }
    return state_->work[newest];
  }
  // Preconditions: parked. The launch that comes next finds the gate shut, and with it what went before. With
  // a heart that beats no launch gets through to be known of.
  bool work_is_known() {
    return within(2s, [&] {
      beat();
      return work().outstanding != 0;
    });
  }
  uint64_t counter(shm::Counter which) const { return state_->counters[which]; }
  template <typename Condition>
  bool within(std::chrono::milliseconds limit, Condition condition) {
    auto end = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(200us);
    }
    return true;
  }

  std::string directory_;
  shm::Limits* limits_ = nullptr;
  shm::State* state_ = nullptr;
  uint64_t epoch_ = 0;
  std::atomic<bool> turning_{false};
  std::thread turns_;
};

constexpr double kBusyTolerance = 3;  // points

// GPU time asked for by what ran, in percent of the time it ran.
double busy_percent(const Outcome& outcome, double kernel_us) {
  return outcome.kernels * kernel_us / (outcome.wall_s * 1e6) * 100;
}

TEST_F(GateTest, open_gate_runs_everything_and_starts_no_thread_of_ours) {
  open();
  for (const char* behaviour :
       {"stream", "legacy", "streams", "per_thread", "memset", "graph", "capture_beside", "short_streams",
        "short_contexts", "threads", "launch_and_wait"}) {
    Outcome outcome = run(behaviour, 100, 0.2);
    EXPECT_TRUE(outcome.success()) << behaviour << ": " << outcome.text;
    EXPECT_GT(outcome.kernels, 0) << behaviour;
  }
  for (const shm::Work& work : state_->work) EXPECT_EQ(work.launches, 0u);
}

TEST_F(GateTest, parked_gate_holds_every_kind_of_launch_until_the_turn_comes) {
  for (const char* behaviour :
       {"stream", "legacy", "streams", "per_thread", "memset", "graph", "launch_and_wait"}) {
    park();
    beat();
    Process process(behaviour, 100, 0.3, directory_);
    ASSERT_TRUE(within(5s, [&] { return work().waiting > 0; })) << behaviour;
    const shm::Work& waiting = work();
    beat();
    std::this_thread::sleep_for(100ms);
    EXPECT_GE(waiting.waiting, 1u) << behaviour;
    EXPECT_EQ(waiting.launches, 0u) << behaviour;
    grant(shm::kNoDeadline);
    Outcome outcome = process.finish();
    EXPECT_TRUE(outcome.success()) << behaviour << ": " << outcome.text;
    EXPECT_EQ(waiting.waiting, 0u) << behaviour;
    EXPECT_GT(waiting.launches, 0u) << behaviour;
  }
}

TEST_F(GateTest, capturing_is_no_work_and_passes_a_parked_gate) {
  park();
  std::atomic<bool> done{false};
  std::thread heart([&] {
    while (!done) {
      beat();
      std::this_thread::sleep_for(50ms);
    }
  });
  Outcome outcome = run("only_capture", 100, 0);
  done = true;
  heart.join();
  EXPECT_TRUE(outcome.success()) << outcome.text;
  EXPECT_LT(outcome.wall_s, 1);
  EXPECT_EQ(work().launches, 0u);
}

TEST_F(GateTest, turn_without_a_deadline_keeps_the_gpu_busy) {
  grant(shm::kNoDeadline);
  for (double kernel_us : {50.0, 1000.0, 20000.0}) {
    Outcome outcome = run("stream", kernel_us, 1);
    EXPECT_TRUE(outcome.success()) << outcome.text;
    EXPECT_GT(busy_percent(outcome, kernel_us), 95) << kernel_us;
  }
}

TEST_F(GateTest, a_quarter_of_the_turns_is_a_quarter_of_the_gpu) {
  start_turns(20ms);
  for (double kernel_us : {50.0, 1000.0}) {
    Outcome outcome = run("stream", kernel_us, 2);
    EXPECT_TRUE(outcome.success()) << outcome.text;
    EXPECT_NEAR(busy_percent(outcome, kernel_us), 25, kBusyTolerance) << kernel_us;
  }
}

TEST_F(GateTest, work_of_a_turn_is_done_soon_after_its_deadline) {
  grant(shm::kNoDeadline);
  EXPECT_TRUE(
      run("stream", 200, 0.1).success());  // the process after it learns anew; this warms only the node up
  park();
  beat();
  Process process("streams", 200, 3, directory_);
  ASSERT_TRUE(within(5s, [&] { return work().waiting > 0; }));
  std::vector<double> late_ms;
  for (int i = 0; i < 30; ++i) {
    beat();
    uint64_t deadline_ns = now_ns() + 10'000'000;
    grant(deadline_ns);
    std::this_thread::sleep_for(10ms);
    ASSERT_TRUE(
        within(100ms, [&] { return work().outstanding == 0 && work().closing_turn == limits_->gate.turn; }));
    late_ms.push_back(static_cast<double>(static_cast<int64_t>(work().drained_ns - deadline_ns)) / 1e6);
    park();
  }
  std::sort(late_ms.begin(), late_ms.end());
  EXPECT_LT(late_ms[late_ms.size() / 2], 1.5);
  process.kill();
}

TEST_F(GateTest, drained_process_tells_that_it_is) {
  grant(shm::kNoDeadline);
  Process process("bursts", 4000, 1, directory_);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(within(5s, [&] { return work().outstanding != 0; }));
    uint32_t rings = state_->doorbell.rings;
    uint64_t before_ns = now_ns();
    ASSERT_TRUE(within(5s, [&] { return work().outstanding == 0; }));
    ASSERT_TRUE(within(5s, [&] { return state_->doorbell.rings != rings; }));
    ASSERT_GE(work().drained_ns, before_ns);
    ASSERT_LE(work().drained_ns, now_ns());
  }
  process.kill();
}

// A launch waits for nothing then, so that nothing else tells the broker that slices compete.
TEST_F(GateTest, work_that_begins_in_a_turn_without_a_deadline_is_told_of) {
  grant(shm::kNoDeadline);
  limits_->gate.others = 0;
  Process process("bursts", 4000, 1, directory_);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(within(5s, [&] { return work().outstanding != 0; }));
    uint32_t rings = state_->doorbell.rings;
    ASSERT_TRUE(within(1s, [&] { return state_->doorbell.rings != rings; }));
  }
  process.kill();
}

class BehaviourTest : public GateTest, public testing::WithParamInterface<const char*> {};

TEST_P(BehaviourTest, occupied_time_is_the_time_of_the_kernels) {
  grant(shm::kNoDeadline);
  Outcome outcome = run(GetParam(), 1000, 1);
  EXPECT_TRUE(outcome.success()) << outcome.text;
  EXPECT_NEAR(static_cast<double>(work().occupied_ns) / (outcome.kernels * 1e6), 1, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Of, BehaviourTest,
                         testing::Values("stream", "launch_and_wait", "bursts", "pairs", "legacy", "threads"),
                         [](const auto& behaviour) { return std::string(behaviour.param); });

TEST_F(GateTest, the_host_s_time_between_short_kernels_is_not_occupied_time) {
  grant(shm::kNoDeadline);
  Outcome outcome = run("pairs", 100, 1);
  EXPECT_TRUE(outcome.success()) << outcome.text;
  EXPECT_NEAR(static_cast<double>(work().occupied_ns) / (outcome.kernels * 1e5), 1, 0.3);
}

TEST_F(GateTest, without_a_broker_a_slice_paces_itself_at_its_share) {
  park();
  for (double kernel_us : {200.0, 5000.0}) {
    Process process("stream", kernel_us, 4, directory_);
    Outcome outcome = process.finish();
    EXPECT_TRUE(outcome.success()) << outcome.text;
    EXPECT_NEAR(busy_percent(outcome, kernel_us), 25, kBusyTolerance) << kernel_us;
  }
  EXPECT_GT(counter(shm::kPacedLaunches), 0u);
}

TEST_F(GateTest, broker_that_comes_back_ends_the_pacing) {
  park();
  Process process("stream", 1000, 4, directory_);
  ASSERT_TRUE(within(5s, [&] { return counter(shm::kPacedLaunches) > 10; }));
  beat();
  grant(shm::kNoDeadline);
  std::this_thread::sleep_for(100ms);
  uint64_t paced = counter(shm::kPacedLaunches);
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(counter(shm::kPacedLaunches), paced);
  EXPECT_TRUE(process.finish().success());
}

TEST_F(GateTest, blocked_gate_is_not_paced) {
  block();
  Process process("stream", 1000, 1, directory_);
  std::this_thread::sleep_for(1500ms);
  EXPECT_EQ(work().launches, 0u);
  EXPECT_EQ(counter(shm::kPacedLaunches), 0u);
  process.kill();
}

TEST_F(GateTest, gate_that_shuts_over_running_work_knows_of_it) {
  open();
  Process process("streams", 2000, 1, directory_);
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(work().outstanding, 0u);
  park();
  EXPECT_TRUE(work_is_known());
  grant(shm::kNoDeadline);
  EXPECT_TRUE(process.finish().success());
}

// Threads go by what they noted of the handle.
TEST_F(GateTest, gate_that_shuts_knows_of_work_of_a_stream_whose_handle_was_used_before) {
  for (const char* behaviour : {"handle_again", "handle_after_capture"}) {
    open();
    Process process(behaviour, 2000, 1, directory_);
    std::this_thread::sleep_for(400ms);
    EXPECT_EQ(work().outstanding, 0u) << behaviour;
    park();
    EXPECT_TRUE(work_is_known()) << behaviour;
    grant(shm::kNoDeadline);
    Outcome outcome = process.finish();
    EXPECT_TRUE(outcome.success()) << behaviour << ": " << outcome.text;
  }
}

TEST_F(GateTest, stream_with_a_used_handle_is_in_its_own_context) {
  grant(shm::kNoDeadline);
  Outcome outcome = run("handle_in_another_context", 1000, 1);
  EXPECT_TRUE(outcome.success()) << outcome.text;
  // In the books of the other context its work can't get an event, and is taken for done at once.
  EXPECT_GT(static_cast<double>(work().occupied_ns) / (outcome.kernels * 1e6), 0.5);
}

TEST_F(GateTest, launches_get_through_when_nothing_completes) {
  // Kernels of 300 times the length that unknown ones are taken for.
  grant(now_ns() + 500'000'000);
  beat();
  Process process("stream", 300'000, 0.5, directory_);
  EXPECT_TRUE(within(5s, [&] {
    beat();
    return counter(shm::kReadmittedLaunches) > 0;
  }));
  process.kill();
}

// Work that waits for work that the gate holds back. Once the only turn is over nothing ends any more by
// itself: the slice is not given another one before it has drained. So every launch that is left may wait for
// one stall, twice what the oldest part was estimated at (a batch has no more than 1 ms, or one kernel), four
// times as long without a turn, and up to sixteen times that where the launches before it did not help.
class DeadlockTest : public GateTest, public testing::WithParamInterface<const char*> {
 protected:
  // Runs it with a turn that it can't finish in; parked when that is over, or closed for good.
  void finishes(bool parked) {
    std::atomic<bool> done = false;
    Process process(GetParam(), 100, 1, directory_);
    std::thread broker([&] {
      uint64_t end_ns = 0;
      while (!done) {
        beat();
        if (end_ns == 0 && waits()) {
          end_ns = now_ns() + 3'000'000;
          grant(end_ns);
        } else if (parked && end_ns != 0 && now_ns() > end_ns && limits_->gate.mode == shm::kTurn) {
          park();
        } else if (end_ns != 0 && now_ns() > end_ns && drained()) {
          end_ns = 0;
        }
        std::this_thread::sleep_for(200us);
      }
    });
    std::thread limit([&] {
      if (!within(20s, [&] { return done.load(); })) process.kill();
    });
    Outcome outcome = process.finish();
    done = true;
    broker.join();
    limit.join();
    EXPECT_TRUE(outcome.success()) << outcome.text;
  }

 private:
  bool any(shm::Shared<uint32_t> shm::Work::*word) const {
    for (uint32_t slot = 0; slot < state_->header.slots_high; ++slot) {
      if (state_->work[slot].*word != 0) return true;
    }
    return false;
  }
  bool waits() const { return any(&shm::Work::waiting) && drained(); }
  bool drained() const { return !any(&shm::Work::outstanding); }
};

TEST_P(DeadlockTest, ends_though_the_turn_is_over) { finishes(false); }
TEST_P(DeadlockTest, ends_though_the_slice_is_parked) { finishes(true); }

INSTANTIATE_TEST_SUITE_P(Of, DeadlockTest,
                         testing::Values("later_launch", "persistent", "host_function", "two_ranks"),
                         [](const auto& behaviour) { return std::string(behaviour.param); });

TEST_F(GateTest, every_behaviour_survives_turns) {
  start_turns(10ms);
  for (const char* behaviour :
       {"legacy", "streams", "per_thread", "memset", "graph", "capture_beside", "short_streams",
        "short_contexts", "many_streams", "threads", "fork_with_work"}) {
    Outcome outcome = run(behaviour, 100, 1);
    EXPECT_TRUE(outcome.success()) << behaviour << ": " << outcome.text;
    EXPECT_GT(outcome.kernels, 0) << behaviour;
  }
}

TEST_F(GateTest, killed_holder_leaves_a_slice_that_works) {
  start_turns(10ms);
  for (int i = 0; i < 10; ++i) {
    Process process("threads", 100, 10, directory_);
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + 13 * i));
    process.kill();
    process.finish();
  }
  EXPECT_TRUE(run("stream", 100, 0.5).success());
}

}  // namespace
