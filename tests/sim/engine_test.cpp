// SPDX-License-Identifier: Apache-2.0
//
// The simulated device under a clock of the test's own.
#include "sim/engine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/node_file.h"

namespace sim {
namespace {

constexpr uint64_t kUs = 1'000, kMs = 1'000'000;
constexpr uint32_t kSms = 132;

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    NodeSettings settings;
    settings.time_slice_ns = 2 * kMs;
    settings.context_switch_ns = 100 * kUs;
    std::string path, error;
    file_ = create_private_node(settings, &path, &error);
    engine_ = new Engine(*file_, 0, kSms);
    engine_->advance(kStart);
  }
  ~EngineTest() override {
    delete engine_;
    unmap_node(file_);
  }

  // A context of a process of its own, with the context's number as the process' index.
  int context() {
    const int index = contexts_++;
    file_->devices[0].processes[index].pid = 1000 + index;
    file_->contexts[index].device_plus_one = 1;
    file_->contexts[index].owner_plus_one = index + 1;
    file_->context_end = contexts_;
    return index;
  }

  Ticket kernel(int context, int channel, uint64_t duration_ns, uint32_t sms = 0) {
    Work work;
    work.duration_ns = duration_ns;
    work.sms = sms;
    return {channel, engine_->submit(context, channel, work)};
  }

  Ticket add(int context, int channel, Work::Kind kind, uint64_t duration_ns,
             std::initializer_list<Ticket> after) {
    Work work;
    work.kind = kind;
    work.duration_ns = duration_ns;
    work.after = after.begin();
    work.after_count = static_cast<int>(after.size());
    return {channel, engine_->submit(context, channel, work)};
  }

  // Since the start; 0: not completed.
  uint64_t done_at(int context, Ticket ticket) const {
    if (file_->contexts[context].channels[ticket.channel].completed < ticket.number) return 0;
    return file_->rings[context][ticket.channel][ticket.number % kChannelDepth].completed_ns - kStart;
  }

  void advance(uint64_t since_start_ns) {
    engine_->advance(kStart + since_start_ns);
    engine_->commit();
  }

  uint64_t busy_ns(int context) {
    engine_->settle_busy();
    return file_->devices[0].processes[context].busy_ns;
  }
  Device& device() { return file_->devices[0]; }
  uint64_t earliest(int context, Ticket ticket) const {
    const uint64_t at_ns = engine_->earliest_completion_ns(context, ticket.channel, ticket.number);
    return at_ns == kNever ? kNever : at_ns - kStart;
  }

  // Keeps a channel full of kernels of this length until a time, looking every step_ns.
  void saturate(std::initializer_list<int> contexts, uint64_t duration_ns, uint64_t until_ns,
                uint64_t step_ns) {
    for (uint64_t at_ns = now_ns_; at_ns <= until_ns; at_ns += step_ns) {
      advance(at_ns);
      for (const int index : contexts) {
        while (engine_->has_room(index, 0)) {
          kernel(index, 0, duration_ns);
          engine_->commit();
        }
      }
    }
    now_ns_ = until_ns;
    advance(until_ns);
  }

  static constexpr uint64_t kStart = 1'000 * kMs;
  NodeFile* file_;
  Engine* engine_;
  int contexts_ = 0;
  uint64_t now_ns_ = 0;
};

TEST_F(EngineTest, channel_runs_its_work_one_after_another) {
  const int a = context();
  const Ticket first = kernel(a, 0, 30 * kUs), second = kernel(a, 0, 20 * kUs);
  advance(30 * kUs);
  EXPECT_EQ(done_at(a, first), 30 * kUs);
  EXPECT_EQ(done_at(a, second), 0u);
  advance(1 * kMs);
  EXPECT_EQ(done_at(a, second), 50 * kUs);
}

TEST_F(EngineTest, outcome_does_not_depend_on_who_looks_when) {
  const int a = context(), b = context();
  std::vector<Ticket> tickets;
  for (int i = 0; i < 200; ++i) {
    tickets.push_back(kernel(a, i % 3, (50 + i) * kUs, 60));
    tickets.push_back(kernel(b, i % 2, (90 + i) * kUs));
  }
  NodeFile* const copy_of_file = file_;
  advance(400 * kMs);  // in one step
  std::vector<uint64_t> in_one_step;
  for (size_t i = 0; i < tickets.size(); ++i) in_one_step.push_back(done_at(i % 2 ? b : a, tickets[i]));

  std::string path, error;
  file_ = create_private_node(copy_of_file->settings, &path, &error);
  delete engine_;
  engine_ = new Engine(*file_, 0, kSms);
  contexts_ = 0;
  advance(0);
  context(), context();
  for (int i = 0; i < 200; ++i) {
    kernel(a, i % 3, (50 + i) * kUs, 60);
    kernel(b, i % 2, (90 + i) * kUs);
  }
  for (uint64_t at_ns = 0; at_ns <= 400 * kMs; at_ns += 37 * kUs) advance(at_ns);
  for (size_t i = 0; i < tickets.size(); ++i) {
    ASSERT_NE(in_one_step[i], 0u);
    EXPECT_EQ(done_at(i % 2 ? b : a, tickets[i]), in_one_step[i]) << i;
  }
  unmap_node(copy_of_file);
}

TEST_F(EngineTest, lone_context_never_switches) {
  const int a = context();
  context();
  saturate({a}, 50 * kUs, 100 * kMs, 10 * kMs);
  EXPECT_EQ(busy_ns(a), 100 * kMs);
  EXPECT_EQ(device().switches, 0u);
}

TEST_F(EngineTest, two_saturating_contexts_share_equally_and_pay_the_switches) {
  const int a = context(), b = context();
  saturate({a, b}, 50 * kUs, 1000 * kMs, 10 * kMs);
  // 2 ms of every 2.1 ms.
  EXPECT_NEAR(busy_ns(a) + busy_ns(b), 1000 * kMs * 2.0 / 2.1, 3.0 * kMs);
  EXPECT_NEAR(busy_ns(a), busy_ns(b), 2.0 * kMs);
  EXPECT_NEAR(device().switch_ns, device().switches * 100.0 * kUs, 100.0 * kUs);
  EXPECT_NEAR(device().switches, 1000 / 2.1, 2);
  EXPECT_EQ(device().busy_ns, busy_ns(a) + busy_ns(b));
}

TEST_F(EngineTest, kernel_longer_than_a_turn_stops_and_goes_on) {
  const int a = context(), b = context();
  const Ticket of_a = kernel(a, 0, 3 * kMs), of_b = kernel(b, 0, 1 * kMs);
  advance(20 * kMs);
  EXPECT_EQ(done_at(a, of_a), 2 * kMs + 100 * kUs + 1 * kMs + 100 * kUs + 1 * kMs);
  EXPECT_EQ(done_at(b, of_b), 2 * kMs + 100 * kUs + 1 * kMs);
  EXPECT_EQ(busy_ns(a), 3 * kMs);
}

TEST_F(EngineTest, context_with_nothing_to_run_gives_way_at_once) {
  const int a = context(), b = context();
  kernel(a, 0, 300 * kUs);
  const Ticket of_b = kernel(b, 0, 1 * kMs);
  advance(10 * kMs);
  EXPECT_EQ(done_at(b, of_b), 300 * kUs + 100 * kUs + 1 * kMs);
}

TEST_F(EngineTest, newcomer_waits_for_the_end_of_the_present_turn) {
  const int a = context(), b = context();
  kernel(a, 0, 100 * kMs);
  advance(5 * kMs);  // in the third turn of a row
  const Ticket of_b = kernel(b, 0, 500 * kUs);
  EXPECT_EQ(earliest(b, of_b), 6 * kMs + 100 * kUs + 500 * kUs);
  advance(200 * kMs);
  EXPECT_EQ(done_at(b, of_b), 6 * kMs + 100 * kUs + 500 * kUs);
}

TEST_F(EngineTest, idle_context_that_comes_back_gets_a_whole_turn) {
  const int a = context(), b = context();
  kernel(a, 0, 500 * kUs);
  advance(1 * kMs);
  const Ticket of_a = kernel(a, 0, 2 * kMs);
  const Ticket of_b = kernel(b, 0, 100 * kUs);
  advance(10 * kMs);
  EXPECT_EQ(done_at(a, of_a), 3 * kMs);
  EXPECT_EQ(done_at(b, of_b), 3 * kMs + 200 * kUs);
}

TEST_F(EngineTest, kernels_of_a_context_run_beside_each_other_while_their_sms_fit) {
  const int a = context();
  const Ticket wide = kernel(a, 0, 1 * kMs, 100);
  const Ticket narrow = kernel(a, 1, 1 * kMs, 32);
  const Ticket late = kernel(a, 2, 1 * kMs, 1);
  advance(10 * kMs);
  EXPECT_EQ(done_at(a, wide), 1 * kMs);
  EXPECT_EQ(done_at(a, narrow), 1 * kMs);
  EXPECT_EQ(done_at(a, late), 2 * kMs);
  EXPECT_EQ(busy_ns(a), 2 * kMs);  // busy is busy, however many run
}

TEST_F(EngineTest, kernel_that_does_not_fit_holds_back_later_ones) {
  const int a = context();
  kernel(a, 0, 1 * kMs, 100);
  const Ticket whole = kernel(a, 1, 1 * kMs);
  const Ticket small = kernel(a, 2, 1 * kMs, 1);
  advance(10 * kMs);
  EXPECT_EQ(done_at(a, whole), 2 * kMs);
  EXPECT_EQ(done_at(a, small), 3 * kMs);
}

TEST_F(EngineTest, work_waits_for_other_channels) {
  const int a = context();
  const Ticket produced = kernel(a, 0, 700 * kUs, 1), other = kernel(a, 3, 900 * kUs, 1);
  const Ticket consumed = add(a, 1, Work::Kind::kKernel, 100 * kUs, {produced, other});
  const Ticket marker = add(a, 2, Work::Kind::kMarker, 0, {produced});
  EXPECT_EQ(earliest(a, consumed), 1 * kMs);
  EXPECT_EQ(earliest(a, marker), 700 * kUs);
  advance(10 * kMs);
  EXPECT_EQ(done_at(a, consumed), 1 * kMs);
  EXPECT_EQ(done_at(a, marker), 700 * kUs);
}

TEST_F(EngineTest, markers_take_no_time_and_need_no_turn) {
  const int a = context(), b = context();
  kernel(a, 0, 100 * kMs);
  advance(1 * kMs);
  const Ticket marker = add(b, 0, Work::Kind::kMarker, 0, {});
  EXPECT_EQ(done_at(b, marker), 1 * kMs);
}

TEST_F(EngineTest, copies_run_beside_other_contexts_one_after_another) {
  const int a = context(), b = context();
  kernel(a, 0, 50 * kMs);
  const Ticket first = add(a, 1, Work::Kind::kCopy, 3 * kMs, {});
  const Ticket second = add(b, 1, Work::Kind::kCopy, 2 * kMs, {});
  advance(60 * kMs);
  EXPECT_EQ(done_at(a, first), 3 * kMs);
  EXPECT_EQ(done_at(b, second), 5 * kMs);
  EXPECT_EQ(busy_ns(b), 0u);
}

TEST_F(EngineTest, spin_ends_when_told_and_others_of_its_context_run_beside) {
  const int a = context();
  Work spin;
  spin.kind = Work::Kind::kSpin;
  spin.sms = 4;
  const Ticket spinning = {0, engine_->submit(a, 0, spin)};
  const Ticket beside = kernel(a, 1, 1 * kMs, 100);
  const Ticket behind = kernel(a, 0, 1 * kMs, 1);
  EXPECT_EQ(earliest(a, spinning), kNever);
  EXPECT_EQ(earliest(a, behind), kNever);
  advance(5 * kMs);
  EXPECT_EQ(done_at(a, beside), 1 * kMs);
  EXPECT_EQ(done_at(a, spinning), 0u);
  engine_->finish_spin(a, spinning.channel, spinning.number);
  EXPECT_EQ(done_at(a, spinning), 5 * kMs);
  advance(10 * kMs);
  EXPECT_EQ(done_at(a, behind), 6 * kMs);
  EXPECT_EQ(busy_ns(a), 6 * kMs);
}

TEST_F(EngineTest, spin_of_another_context_does_not_keep_the_device) {
  const int a = context(), b = context();
  Work spin;
  spin.kind = Work::Kind::kSpin;
  spin.sms = 1;
  engine_->submit(a, 0, spin);
  const Ticket of_b = kernel(b, 0, 3 * kMs);
  advance(20 * kMs);
  EXPECT_EQ(done_at(b, of_b), 2 * kMs + 100 * kUs + 2 * kMs + 100 * kUs + 2 * kMs + 100 * kUs + 1 * kMs);
}

TEST_F(EngineTest, spin_of_no_sms_holds_only_its_channel) {
  const int a = context(), b = context();
  Work wait;
  wait.kind = Work::Kind::kSpin;
  const Ticket held = {0, engine_->submit(a, 0, wait)};
  const Ticket behind = kernel(a, 0, 1 * kMs);
  const Ticket of_b = kernel(b, 0, 3 * kMs);
  advance(4 * kMs);
  EXPECT_EQ(done_at(b, of_b), 3 * kMs);
  engine_->finish_spin(a, held.channel, held.number);
  advance(10 * kMs);
  EXPECT_EQ(done_at(a, held), 4 * kMs);
  EXPECT_EQ(done_at(a, behind), 4 * kMs + 100 * kUs + 1 * kMs);
  EXPECT_EQ(busy_ns(a), 1 * kMs);
}

TEST_F(EngineTest, spin_finished_before_it_starts_takes_no_time) {
  const int a = context();
  kernel(a, 0, 1 * kMs);
  Work spin;
  spin.kind = Work::Kind::kSpin;
  spin.sms = 1;
  const Ticket early = {0, engine_->submit(a, 0, spin)};
  engine_->finish_spin(a, early.channel, early.number);
  advance(5 * kMs);
  EXPECT_EQ(done_at(a, early), 1 * kMs);
}

TEST_F(EngineTest, dropped_work_gives_the_device_to_the_next) {
  const int a = context(), b = context(), c = context();
  for (int i = 0; i < 100; ++i) kernel(a, 0, 1 * kMs);
  add(a, 1, Work::Kind::kCopy, 100 * kMs, {});
  kernel(c, 0, 50 * kMs);
  const Ticket of_b = kernel(b, 0, 500 * kUs);
  const Ticket copy_of_b = add(b, 1, Work::Kind::kCopy, 1 * kMs, {});
  advance(1 * kMs);
  engine_->drop_work(c);  // while it waits
  engine_->drop_work(a);  // while it runs
  advance(20 * kMs);
  EXPECT_EQ(done_at(b, of_b), 1 * kMs + 500 * kUs);
  EXPECT_EQ(done_at(b, copy_of_b), 2 * kMs);
  EXPECT_EQ(busy_ns(a), 1 * kMs);
  EXPECT_EQ(busy_ns(c), 0u);
  EXPECT_EQ(device().busy_ns, 1 * kMs + 500 * kUs);
}

TEST_F(EngineTest, context_dropped_while_it_is_switched_to_ends_the_switch) {
  const int a = context(), b = context();
  kernel(a, 0, 1 * kMs);
  kernel(b, 0, 1 * kMs);
  advance(1 * kMs + 40 * kUs);
  engine_->drop_work(b);
  EXPECT_EQ(device().switch_ns, 40 * kUs);
  const Ticket of_a = kernel(a, 0, 1 * kMs);
  advance(5 * kMs);
  EXPECT_EQ(done_at(a, of_a), 2 * kMs + 40 * kUs);
}

TEST_F(EngineTest, utilisation_is_the_busy_part_of_the_window) {
  const int a = context(), b = context();
  for (int i = 0; i < 100; ++i) {
    advance(i * 10 * kMs);
    kernel(i < 50 ? a : b, 0, (i < 50 ? 4 : 8) * kMs);
  }
  advance(1000 * kMs);
  engine_->settle_busy();
  EXPECT_NEAR(busy_percent(device().history, device().now_ns, 1000 * kMs), 60, 1);
  EXPECT_NEAR(busy_percent(device().history, device().now_ns, 200 * kMs), 80, 1);
  EXPECT_NEAR(busy_percent(device().processes[a].history, device().now_ns, 1000 * kMs), 20, 1);
  EXPECT_NEAR(busy_percent(device().processes[b].history, device().now_ns, 1000 * kMs), 40, 1);
  advance(3000 * kMs);
  EXPECT_EQ(busy_percent(device().history, device().now_ns, 1000 * kMs), 0u);
}

TEST_F(EngineTest, utilisation_of_a_kernel_still_running_counts) {
  const int a = context();
  kernel(a, 0, 60'000 * kMs);
  advance(5'000 * kMs);
  engine_->settle_busy();
  EXPECT_EQ(busy_percent(device().history, device().now_ns, 1000 * kMs), 100u);
  EXPECT_EQ(device().busy_ns, 5'000 * kMs);
}

TEST_F(EngineTest, earliest_completion_is_never_late_and_comes_near_in_few_looks) {
  const int a = context(), b = context(), c = context();
  for (int i = 0; i < 300; ++i) kernel(a, 0, 70 * kUs);
  engine_->commit();
  for (int i = 0; i < 9; ++i) kernel(b, 0, 3 * kMs, 50);
  const Ticket last = kernel(c, 0, 9 * kMs);
  int looks = 0;
  uint64_t at_ns = 0;
  while (done_at(c, last) == 0) {
    const uint64_t next_ns = earliest(c, last);
    ASSERT_GT(next_ns, at_ns);
    at_ns = next_ns;
    advance(at_ns);
    ++looks;
  }
  EXPECT_EQ(done_at(c, last), at_ns);
  EXPECT_LT(looks, 40);
}

TEST_F(EngineTest, rolled_back_step_leaves_nothing) {
  const int a = context(), b = context();
  for (int i = 0; i < 20; ++i) {
    kernel(a, i % 4, 300 * kUs, 40);
    add(b, i % 3, Work::Kind::kCopy, 100 * kUs, {});
    kernel(b, i % 3, 500 * kUs);
  }
  advance(1 * kMs);
  std::string before(reinterpret_cast<char*>(&device()), offsetof(Device, history));
  std::string contexts(reinterpret_cast<char*>(file_->contexts), 2 * sizeof(Context));

  engine_->advance(kStart + 3 * kMs);
  kernel(a, 7, 1 * kMs);
  engine_->drop_work(b);
  EXPECT_NE(std::string(reinterpret_cast<char*>(file_->contexts), 2 * sizeof(Context)), contexts);
  engine_->journal().roll_back();
  EXPECT_EQ(std::string(reinterpret_cast<char*>(&device()), offsetof(Device, history)), before);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(file_->contexts), 2 * sizeof(Context)), contexts);
}

TEST_F(EngineTest, recovery_goes_on_where_the_last_commit_was) {
  const int a = context(), b = context();
  const Ticket of_a = kernel(a, 0, 3 * kMs), of_b = kernel(b, 0, 1 * kMs);
  advance(1 * kMs);
  engine_->advance(kStart + 10 * kMs);
  engine_->recover();
  EXPECT_EQ(device().now_ns, kStart + 1 * kMs);
  advance(20 * kMs);
  EXPECT_EQ(done_at(a, of_a), 2 * kMs + 100 * kUs + 1 * kMs + 100 * kUs + 1 * kMs);
  EXPECT_EQ(done_at(b, of_b), 2 * kMs + 100 * kUs + 1 * kMs);
}

TEST_F(EngineTest, full_channel_has_no_room) {
  const int a = context();
  for (int i = 0; i < kChannelDepth; ++i) {
    kernel(a, 0, 10 * kUs);
    engine_->commit();
  }
  EXPECT_FALSE(engine_->has_room(a, 0));
  EXPECT_TRUE(engine_->has_room(a, 1));
  advance(10 * kUs);
  EXPECT_TRUE(engine_->has_room(a, 0));
}

}  // namespace
}  // namespace sim
