// SPDX-License-Identifier: Apache-2.0
//
// A node shared by real processes: exhaustion, and death at any instruction.
#include "sim/node.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "sim/host_pids.h"
#include "sim/node_file.h"
#include "sim/process.h"

namespace sim {
namespace {

constexpr uint64_t kMiB = 1ull << 20, kGiB = 1ull << 30;
constexpr uint64_t kUs = 1'000, kMs = 1'000'000;
constexpr uint64_t kContextBytes = 500 * kMiB;

uint64_t clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ull + now.tv_nsec;
}

void sleep_ns(uint64_t duration_ns) {
  const timespec duration = {static_cast<time_t>(duration_ns / 1'000'000'000),
                             static_cast<long>(duration_ns % 1'000'000'000)};
  nanosleep(&duration, nullptr);
}

// The whole program's node: a directory, as of several unrelated processes.
class NodeDirectory : public testing::Environment {
 public:
  void SetUp() override {
    std::string path = testing::TempDir() + "simgpu-node-test.XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    path_ = path;
    setenv("SIMGPU_NODE", path.c_str(), 1);
    setenv("SIMGPU_COUNT", "2", 1);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

 private:
  std::string path_;
};

const auto* const kDirectory = testing::AddGlobalTestEnvironment(new NodeDirectory);

// A child that runs this and then waits to be killed; returns once it has run.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      body();
      [[maybe_unused]] const ssize_t written = write(ready[1], "", 1);
      for (;;) pause();
    }
    close(ready[1]);
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~Child() {
    if (pid_ > 0) kill_and_reap();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill_only() { kill(pid_, SIGKILL); }
  void reap() {
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void kill_and_reap() {
    kill_only();
    reap();
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

class NodeTest : public testing::Test {
 protected:
  // Lets the millisecond pass in which a look does not check again who lives.
  static uint64_t used_bytes(int device) {
    sleep_ns(2 * kMs);
    return Node::get().memory(device).used_bytes;
  }
};

TEST_F(NodeTest, managed_memory_takes_from_the_device_and_is_not_listed_under_the_process) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  const uint64_t context_bytes = node.settings().context_bytes;
  ASSERT_TRUE(node.take_memory(0, kGiB, Node::Memory::kManaged));
  ProcessUse use;
  ASSERT_EQ(node.processes(0, &use, 1), 1);
  EXPECT_EQ(use.used_bytes, context_bytes);
  EXPECT_EQ(used_bytes(0), context_bytes + kGiB);
  node.give_memory(0, kGiB, Node::Memory::kManaged);
  ASSERT_EQ(node.processes(0, &use, 1), 1);
  EXPECT_EQ(use.used_bytes, context_bytes);
  node.destroy_context(context);
  EXPECT_EQ(used_bytes(0), 0u);
}

TEST_F(NodeTest, memory_of_all_processes_exhausts_the_device) {
  Node& node = Node::get();
  const uint64_t total_bytes = node.memory(0).total_bytes;
  EXPECT_EQ(total_bytes, node.model(0).memory_bytes);
  const uint64_t others_bytes = total_bytes - 10 * kGiB;
  Child child([&] {
    if (!Node::get().take_memory(0, others_bytes)) _exit(1);
  });
  EXPECT_EQ(used_bytes(0), others_bytes);
  EXPECT_FALSE(node.take_memory(0, 10 * kGiB + 1));
  EXPECT_TRUE(node.take_memory(0, 10 * kGiB));
  EXPECT_FALSE(node.take_memory(0, 1));
  EXPECT_EQ(node.create_context(0), kNoContext);
  EXPECT_TRUE(node.take_memory(1, 10 * kGiB));  // the other device is its own
  node.give_memory(1, 10 * kGiB);

  child.kill_and_reap();
  EXPECT_TRUE(node.take_memory(0, others_bytes));  // at once, since it would be refused otherwise
  node.give_memory(0, total_bytes);
  EXPECT_EQ(used_bytes(0), 0u);
}

TEST_F(NodeTest, killed_process_is_dead_before_it_is_reaped) {
  Child child([] { Node::get().take_memory(0, kGiB); });
  EXPECT_EQ(used_bytes(0), kGiB);
  child.kill_only();
  siginfo_t info;
  waitid(P_PID, child.pid(), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(used_bytes(0), 0u);
  child.reap();
}

TEST_F(NodeTest, giving_back_more_than_taken_stops_at_nothing) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  node.take_memory(0, kGiB);
  node.give_memory(0, 5 * kGiB);
  EXPECT_EQ(used_bytes(0), kContextBytes);
  node.destroy_context(context);
  EXPECT_EQ(used_bytes(0), 0u);
}

TEST_F(NodeTest, process_is_listed_from_its_first_context_to_its_last) {
  Node& node = Node::get();
  node.take_memory(0, kGiB);
  ProcessUse list[4];
  EXPECT_EQ(node.processes(0, list, 4), 0);
  const ContextId first = node.create_context(0), second = node.create_context(0);
  ASSERT_EQ(node.processes(0, list, 4), 1);
  EXPECT_EQ(list[0].pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(list[0].used_bytes, kGiB + 2 * kContextBytes);
  {
    Child child([] { Node::get().create_context(0); });
    EXPECT_EQ(node.processes(0, list, 1), 2);  // how many there are, whatever fits
    sleep_ns(2 * kMs);
  }
  sleep_ns(2 * kMs);
  EXPECT_EQ(node.processes(0, list, 4), 1);
  node.destroy_context(first);
  node.destroy_context(second);
  EXPECT_EQ(node.processes(0, list, 4), 0);
  node.give_memory(0, kGiB);
}

TEST_F(NodeTest, forked_child_has_nothing_of_its_parents) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  node.take_memory(0, kGiB);
  {
    Child child([&] {
      Node& inherited = Node::get();
      inherited.give_memory(0, kGiB);
      inherited.destroy_context(context);
      if (inherited.submit(context, 0, {}).channel != -1) _exit(1);
    });
    EXPECT_EQ(used_bytes(0), kGiB + kContextBytes);
  }
  EXPECT_EQ(used_bytes(0), kGiB + kContextBytes);
  node.destroy_context(context);
  node.give_memory(0, kGiB);
}

TEST_F(NodeTest, wait_returns_when_the_work_is_done_and_not_before) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  Work kernel;
  kernel.duration_ns = 20 * kMs;
  const uint64_t began_ns = clock_ns();
  const Ticket ticket = node.submit(context, 0, kernel);
  EXPECT_FALSE(node.completed(context, ticket));
  EXPECT_EQ(node.completed_at(context, ticket), 0u);
  node.wait(context, ticket);
  EXPECT_GE(clock_ns() - began_ns, 20 * kMs);
  EXPECT_TRUE(node.completed(context, ticket));
  EXPECT_GE(node.completed_at(context, ticket), began_ns + 20 * kMs);
  EXPECT_LE(node.completed_at(context, ticket), clock_ns());
  node.destroy_context(context);
}

TEST_F(NodeTest, submission_to_a_full_channel_waits) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  Work kernel;
  kernel.duration_ns = 20 * kUs;
  const uint64_t began_ns = clock_ns();
  for (int i = 0; i < 3 * kChannelDepth; ++i) node.submit(context, 0, kernel);
  EXPECT_GE(clock_ns() - began_ns, 2 * kChannelDepth * 20 * kUs);
  node.destroy_context(context);
}

TEST_F(NodeTest, marker_keeps_its_time_after_thousands_of_kernels) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  Work marker, kernel;
  marker.kind = Work::Kind::kMarker;
  kernel.duration_ns = 5 * kUs;
  const Ticket begin = node.submit(context, 0, marker);
  const uint64_t begin_ns = node.completed_at(context, begin);
  Ticket last;
  for (int i = 0; i < 4 * kChannelDepth; ++i) last = node.submit(context, 0, kernel);
  const Ticket end = node.submit(context, 0, marker);
  node.wait(context, end);
  EXPECT_EQ(node.completed_at(context, begin), begin_ns);
  EXPECT_GE(node.completed_at(context, end) - begin_ns, 4 * kChannelDepth * 5 * kUs);
  node.destroy_context(context);
}

TEST_F(NodeTest, join_comes_after_every_channel) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  uint64_t last_ns = 0;
  Ticket kernels[kChannelsPerContext];
  for (int i = 0; i < kChannelsPerContext; ++i) {
    Work kernel;
    kernel.duration_ns = (i + 1) * 100 * kUs;
    kernel.sms = 1;
    kernels[i] = node.submit(context, i, kernel);
  }
  const Ticket join = node.submit_join(context, 3);
  node.wait(context, join);
  for (const Ticket& kernel : kernels) {
    ASSERT_TRUE(node.completed(context, kernel));
    last_ns = std::max(last_ns, node.completed_at(context, kernel));
  }
  EXPECT_EQ(node.completed_at(context, join), last_ns);
  node.destroy_context(context);
}

TEST_F(NodeTest, work_of_a_killed_process_goes_at_once) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  Child child([] {
    Work kernel;
    kernel.duration_ns = 500 * kMs;
    const ContextId own = Node::get().create_context(0);
    for (int i = 0; i < 20; ++i) Node::get().submit(own, 0, kernel);
  });
  sleep_ns(5 * kMs);
  child.kill_and_reap();
  Work kernel;
  kernel.duration_ns = 10 * kMs;
  const uint64_t began_ns = clock_ns();
  node.wait(context, node.submit(context, 0, kernel));
  EXPECT_LT(clock_ns() - began_ns, 19 * kMs);  // twenty and more if the dead one had its turns
  node.destroy_context(context);
  EXPECT_EQ(used_bytes(0), 0u);
}

TEST_F(NodeTest, waiting_thread_returns_when_the_spin_is_finished_elsewhere) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  Work spin;
  spin.kind = Work::Kind::kSpin;
  const Ticket ticket = node.submit(context, 0, spin);
  pthread_t other;
  struct Argument {
    ContextId context;
    Ticket ticket;
  } argument = {context, ticket};
  pthread_create(
      &other, nullptr,
      [](void* pointer) -> void* {
        const auto* argument = static_cast<Argument*>(pointer);
        sleep_ns(20 * kMs);
        Node::get().finish_spin(argument->context, argument->ticket);
        return nullptr;
      },
      &argument);
  node.wait(context, ticket);
  EXPECT_TRUE(node.completed(context, ticket));
  pthread_join(other, nullptr);
  node.destroy_context(context);
}

TEST_F(NodeTest, utilisation_follows_the_work) {
  Node& node = Node::get();
  const ContextId context = node.create_context(1);
  Work kernel;
  kernel.duration_ns = 5 * kMs;
  for (int i = 0; i < 20; ++i) {
    node.submit(context, 0, kernel);
    sleep_ns(10 * kMs);
  }
  EXPECT_NEAR(node.utilization_percent(1, 100 * kMs), 50, 12);
  EXPECT_NEAR(node.process_utilization_percent(1, getpid(), 100 * kMs), 50, 12);
  EXPECT_EQ(node.process_utilization_percent(1, 1, 100 * kMs), 0u);
  EXPECT_GE(node.device_use(1).busy_ns, 95 * kMs);
  node.destroy_context(context);
}

// Everything that writes, as fast as it goes, until killed.
[[noreturn]] void churn(unsigned seed) {
  Node& node = Node::get();
  ContextId contexts[3] = {kNoContext, kNoContext, kNoContext};
  for (unsigned step = seed;; ++step) {
    ContextId& context = contexts[step % 3];
    if (context == kNoContext) context = node.create_context(0);
    Work work;
    work.duration_ns = (step % 7) * 3 * kUs;
    work.sms = 1 + step % 132;
    work.kind = step % 5 == 0 ? Work::Kind::kCopy : Work::Kind::kKernel;
    Ticket last[4];
    for (int i = 0; i < 4; ++i) {
      work.after = last;
      work.after_count = i;
      last[i] = node.submit(context, (step + i) % 5, work);
    }
    const Ticket join = node.submit_join(context, 6);
    node.take_memory(0, kMiB);
    if (step % 3 == 0) node.wait(context, join);
    node.give_memory(0, kMiB);
    if (step % 11 == 0) {
      node.destroy_context(context);
      context = kNoContext;
    }
  }
}

TEST_F(NodeTest, process_killed_at_any_instruction_leaves_nothing) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  for (unsigned round = 0; round < 300; ++round) {
    pid_t pids[2];
    for (pid_t& pid : pids) {
      pid = fork();
      if (pid == 0) churn(round);
    }
    sleep_ns(1 * kMs + round % 17 * 230 * kUs);
    for (const pid_t pid : pids) kill(pid, SIGKILL);
    for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
    ASSERT_EQ(used_bytes(0), kContextBytes) << "round " << round;
    ProcessUse list[4];
    ASSERT_EQ(node.processes(0, list, 4), 1) << "round " << round;
    // The device still works, for one that is now alone.
    Work kernel;
    kernel.duration_ns = 100 * kUs;
    const Ticket ticket = node.submit(context, 0, kernel);
    const uint64_t submitted_ns = clock_ns();
    node.wait(context, ticket);
    ASSERT_LT(node.completed_at(context, ticket), submitted_ns + 300 * kUs) << "round " << round;
  }
  const DeviceUse use = node.device_use(0);
  EXPECT_GT(use.busy_ns, 0u);
  node.destroy_context(context);
  EXPECT_EQ(used_bytes(0), 0u);
}

TEST_F(NodeTest, identities_are_stable_and_differ_by_device) {
  Node& node = Node::get();
  uint8_t first[16], again[16], second[16];
  node.uuid(0, first);
  node.uuid(0, again);
  node.uuid(1, second);
  EXPECT_EQ(memcmp(first, again, 16), 0);
  EXPECT_NE(memcmp(first, second, 16), 0);
}

TEST_F(NodeTest, memory_goes_when_its_process_becomes_another_program) {
  int ends_of_pipe[2];
  ASSERT_EQ(pipe(ends_of_pipe), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (Node::get().create_context(0) < 0 || !Node::get().take_memory(0, kGiB)) _exit(1);
    [[maybe_unused]] const ssize_t written = write(ends_of_pipe[1], "", 1);
    close(ends_of_pipe[0]);
    close(ends_of_pipe[1]);
    execlp("sleep", "sleep", "60", nullptr);
    _exit(1);
  }
  close(ends_of_pipe[1]);
  char byte;
  ASSERT_EQ(read(ends_of_pipe[0], &byte, 1), 1);
  uint64_t used = 1;
  for (int i = 0; i < 500 && used != 0; ++i) used = used_bytes(0);
  EXPECT_EQ(used, 0u);
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it should still run";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ends_of_pipe[0]);
}

TEST_F(NodeTest, a_forked_child_keeps_what_its_dead_parent_had) {
  int pids[2];
  ASSERT_EQ(pipe(pids), 0);
  pid_t grandchild = 0;
  {
    Child parent([&] {
      if (Node::get().create_context(0) < 0) _exit(1);
      const pid_t own_child = fork();
      if (own_child == 0) {
        for (;;) pause();
      }
      [[maybe_unused]] const ssize_t written = write(pids[1], &own_child, sizeof(own_child));
    });
    ASSERT_EQ(read(pids[0], &grandchild, sizeof(grandchild)), static_cast<ssize_t>(sizeof(grandchild)));
    EXPECT_EQ(used_bytes(0), kContextBytes);
    const pid_t pid = parent.pid();
    parent.kill_and_reap();
    EXPECT_EQ(used_bytes(0), kContextBytes);
    ProcessUse use = {};
    ASSERT_EQ(Node::get().processes(0, &use, 1), 1);
    EXPECT_EQ(use.pid, static_cast<uint32_t>(pid)) << "listed under its own pid until the child ends too";
  }
  kill(grandchild, SIGKILL);
  uint64_t used = 1;
  for (int i = 0; i < 500 && used != 0; ++i) used = used_bytes(0);
  EXPECT_EQ(used, 0u);
  close(pids[0]);
  close(pids[1]);
}

TEST_F(NodeTest, what_an_importer_holds_outlives_the_exporter) {
  Node& node = Node::get();
  uint64_t keys[2] = {};
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  Child exporter([&] {
    Node& own = Node::get();
    if (!own.take_memory(0, 3 * kGiB)) _exit(1);
    const uint64_t made[2] = {own.share_memory(0, kGiB), own.share_memory(0, kGiB)};
    [[maybe_unused]] const ssize_t written = write(told[1], made, sizeof(made));
  });
  ASSERT_EQ(read(told[0], keys, sizeof(keys)), static_cast<ssize_t>(sizeof(keys)));
  ASSERT_TRUE(node.hold_shared_memory(0, keys[0]));
  ASSERT_TRUE(node.hold_shared_memory(0, keys[0]));
  EXPECT_EQ(used_bytes(0), 3 * kGiB);
  exporter.kill_and_reap();
  EXPECT_EQ(used_bytes(0), kGiB);
  EXPECT_FALSE(node.hold_shared_memory(0, keys[1])) << "nobody held it";
  node.let_shared_memory_go(0, keys[0]);
  EXPECT_EQ(used_bytes(0), kGiB);
  node.let_shared_memory_go(0, keys[0]);
  EXPECT_EQ(used_bytes(0), 0u);
  close(told[0]);
  close(told[1]);
}

TEST_F(NodeTest, an_importers_death_lets_go_and_the_exporter_has_its_own) {
  Node& node = Node::get();
  ASSERT_TRUE(node.take_memory(0, 2 * kGiB));
  const uint64_t key = node.share_memory(0, kGiB);
  Child importer([&] {
    if (!Node::get().hold_shared_memory(0, key)) _exit(1);
  });
  node.give_shared_memory(0, key);
  EXPECT_EQ(used_bytes(0), 2 * kGiB) << "the importer still has it";
  importer.kill_and_reap();
  EXPECT_EQ(used_bytes(0), kGiB);
  node.give_memory(0, kGiB);
  EXPECT_EQ(used_bytes(0), 0u);
}

TEST_F(NodeTest, a_process_of_another_pid_namespace_is_listed_as_the_host_knows_it) {
  std::string error;
  Node::get();  // whoever makes the node is its host
  const auto pids = HostPids::serve(getenv("SIMGPU_NODE"), &error);
  ASSERT_NE(pids, nullptr) << error;
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t outer = fork();
  if (outer == 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) _exit(2);
    const pid_t inner = fork();  // pid 1 of the new namespace
    if (inner == 0) {
      const bool made = getpid() == 1 && Node::get().create_context(0) >= 0;
      [[maybe_unused]] const ssize_t written = write(told[1], &made, sizeof(made));
      for (;;) pause();
    }
    [[maybe_unused]] const ssize_t written = write(told[1], &inner, sizeof(inner));
    waitpid(inner, nullptr, 0);
    _exit(0);
  }
  close(told[1]);
  int status = 0;
  char answers[sizeof(bool) + sizeof(pid_t)];
  size_t got = 0;
  for (ssize_t part; got < sizeof(answers); got += part) {
    part = read(told[0], answers + got, sizeof(answers) - got);
    if (part <= 0) break;
  }
  close(told[0]);
  if (got < sizeof(answers)) {
    waitpid(outer, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "no user namespaces here";
    FAIL();
  }
  ProcessUse use = {};
  ASSERT_EQ(Node::get().processes(0, &use, 1), 1);
  ASSERT_GT(use.pid, 1u);
  EXPECT_EQ(use.used_bytes, kContextBytes);
  char path[64];
  snprintf(path, sizeof(path), "/proc/%u/status", use.pid);
  EXPECT_EQ(access(path, F_OK), 0) << "the pid is one of this namespace";
  kill(static_cast<pid_t>(use.pid), SIGKILL);
  waitpid(outer, nullptr, 0);
  EXPECT_EQ(used_bytes(0), 0u);
}

TEST(FaultTest, faults_are_read_or_refused_by_name) {
  Faults faults;
  std::string error;
  EXPECT_TRUE(parse_faults("lost,refuse-every=3", &faults, &error));
  EXPECT_EQ(faults.lost, 1u);
  EXPECT_EQ(faults.refuse_every, 3u);
  EXPECT_TRUE(parse_faults("none", &faults, &error));
  EXPECT_EQ(faults.lost, 0u);
  for (const char* const bad : {"", "lots", "lost=1", "refuse-at", "refuse-at=x", "lost,"}) {
    EXPECT_FALSE(parse_faults(bad, &faults, &error)) << bad;
    EXPECT_FALSE(error.empty());
  }
}

TEST_F(NodeTest, requests_for_memory_are_refused_on_demand) {
  Node& node = Node::get();
  node.set_faults(1, {.refuse_at = 3});
  EXPECT_TRUE(node.take_memory(1, kMiB));
  EXPECT_TRUE(node.take_memory(1, kMiB));
  EXPECT_FALSE(node.take_memory(1, kMiB));
  EXPECT_TRUE(node.take_memory(1, kMiB));
  node.set_faults(1, {.refuse_every = 2});
  EXPECT_TRUE(node.take_memory(1, kMiB));
  EXPECT_EQ(node.create_context(1), kNoContext);
  node.set_faults(1, {});
  node.give_memory(1, 4 * kMiB);
  EXPECT_EQ(used_bytes(1), 0u);
}

TEST_F(NodeTest, an_error_ends_the_work_of_the_process_that_it_names) {
  Node& node = Node::get();
  const ContextId context = node.create_context(0);
  const Ticket kernel = node.submit(context, 0, {.duration_ns = 3'600'000 * kMs});
  const uint32_t seen = node.events();
  EXPECT_EQ(node.own_xid(0), 0u);
  EXPECT_FALSE(node.report_xid(0, 31, 1));
  EXPECT_TRUE(node.report_xid(0, 31, getpid()));
  EXPECT_NE(node.events(), seen);
  EXPECT_EQ(node.own_xid(0), 31u);
  EXPECT_TRUE(node.completed(context, kernel));
  EXPECT_EQ(node.xid(0, node.xid_count(0) - 1), 31u);
  node.destroy_context(context);
}

TEST(NodeFileTest, bad_settings_are_refused_by_name) {
  const char* const bad[][2] = {{"SIMGPU_GPU", "h900"},     {"SIMGPU_GPU", "a-very-long-name-of-a-gpu"},
                                {"SIMGPU_COUNT", "17"},     {"SIMGPU_COUNT", "two"},
                                {"SIMGPU_DRIVER", "13"},    {"SIMGPU_DRIVER", "9.0"},
                                {"SIMGPU_SWITCH_NS", "-1"}, {"SIMGPU_TIME_SLICE_NS", "0"}};
  for (const auto& [name, value] : bad) {
    const char* const had = getenv(name);
    const std::string before = had ? had : "";
    setenv(name, value, 1);
    NodeSettings settings;
    std::string error;
    EXPECT_FALSE(settings_from_environment(&settings, &error)) << name << "=" << value;
    EXPECT_FALSE(error.empty());
    if (had) {
      setenv(name, before.c_str(), 1);
    } else {
      unsetenv(name);
    }
  }
}

TEST(NodeFileTest, file_that_is_no_node_is_refused) {
  std::string path = testing::TempDir() + "simgpu-not-a-node.XXXXXX";
  ASSERT_NE(mkdtemp(path.data()), nullptr);
  std::string error;
  EXPECT_EQ(open_node(path, &error), nullptr);
  EXPECT_TRUE(error.empty());
  FILE* file = fopen((path + "/node").c_str(), "w");
  fputs("not a node", file);
  fclose(file);
  EXPECT_EQ(open_node(path, &error), nullptr);
  EXPECT_NE(error.find("is not a node file"), std::string::npos) << error;
  std::filesystem::remove_all(path);
}

TEST(NodeFileTest, driver_versions) {
  uint32_t version = 0;
  EXPECT_TRUE(parse_driver_version("12.9", &version));
  EXPECT_EQ(version, 12090u);
  EXPECT_FALSE(parse_driver_version("12.9.1", &version));
  EXPECT_FALSE(parse_driver_version("", &version));
}

}  // namespace
}  // namespace sim
