// SPDX-License-Identifier: Apache-2.0
#include "limiter/arbiter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/limiter/gpu_model.h"

namespace {

using model::kMicrosecond;
using model::kMillisecond;
using model::kSecond;
using model::Node;
using model::Tenant;

struct Received {
  double first_percent;  // of what both received
  double busy_percent;   // of the time
};

Received run_two(uint32_t first, uint32_t second, model::Load one, model::Load two, uint64_t duration_ns) {
  Node node;
  Tenant& a = node.add(first, std::move(one));
  Tenant& b = node.add(second, std::move(two));
  a.start();
  b.start();
  node.clock.run_until(duration_ns);
  const double sum = static_cast<double>(a.busy_ns() + b.busy_ns());
  return {100.0 * static_cast<double>(a.busy_ns()) / sum, 100.0 * sum / static_cast<double>(duration_ns)};
}

struct Split {
  uint32_t first, second;
  uint64_t kernel_ns;
};

class SharesAreExact : public testing::TestWithParam<Split> {};

TEST_P(SharesAreExact, and_the_gpu_is_busy) {
  const Split split = GetParam();
  const Received received = run_two(split.first, split.second, model::saturating(split.kernel_ns),
                                    model::saturating(split.kernel_ns), 10 * kSecond);
  EXPECT_NEAR(received.first_percent, split.first, 1.0);
  // q / (q + c) for a quantum of 5 ms and a switch of 0.1 ms is 98.0.
  EXPECT_GE(received.busy_percent, 98.0 - 0.5);
}

INSTANTIATE_TEST_SUITE_P(Splits, SharesAreExact,
                         testing::Values(Split{75, 25, 50 * kMicrosecond}, Split{75, 25, kMillisecond},
                                         Split{75, 25, 20 * kMillisecond}, Split{30, 70, 50 * kMicrosecond},
                                         Split{30, 70, kMillisecond}, Split{30, 70, 20 * kMillisecond},
                                         Split{50, 50, 50 * kMicrosecond}, Split{50, 50, kMillisecond},
                                         Split{50, 50, 20 * kMillisecond}, Split{90, 10, kMillisecond},
                                         Split{90, 10, 50 * kMillisecond}));

TEST(Arbiter, estimates_that_are_off_cost_neither_share_nor_time) {
  for (const double factor : {0.8, 1.2, 1.5}) {
    Node::Settings slow;
    slow.wake_ns = 150 * kMicrosecond;
    Node node(slow);
    model::Load wrong = model::saturating(50 * kMicrosecond);
    wrong.estimate_factor = factor;
    Tenant& a = node.add(50, wrong);
    Tenant& b = node.add(50, wrong);
    a.start();
    b.start();
    node.clock.run_until(10 * kSecond);
    const double sum = static_cast<double>(a.busy_ns() + b.busy_ns());
    EXPECT_NEAR(100 * static_cast<double>(a.busy_ns()) / sum, 50, 1.0) << factor;
    EXPECT_GE(sum / 1e8, 97.0) << factor;
  }
}

TEST(Arbiter, unequal_kernels_get_equal_time) {
  const Received received = run_two(50, 50, model::saturating(50 * kMicrosecond),
                                    model::saturating(100 * kMillisecond), 30 * kSecond);
  EXPECT_NEAR(received.first_percent, 50, 2.0);
}

// Loops that wait for each kernel are between two launches when a turn ends, not at the gate.
TEST(Arbiter, loops_that_wait_for_each_kernel_get_their_shares) {
  for (const uint64_t gap_ns : {10 * kMicrosecond, 50 * kMicrosecond}) {
    const Received received = run_two(75, 25, model::launch_sync(500 * kMicrosecond, gap_ns),
                                      model::launch_sync(500 * kMicrosecond, gap_ns), 10 * kSecond);
    EXPECT_NEAR(received.first_percent, 75, 1.0) << gap_ns;
  }
}

TEST(Arbiter, guarantees_below_100_percent_share_the_rest_in_proportion) {
  const Received received =
      run_two(30, 10, model::saturating(kMillisecond), model::saturating(kMillisecond), 10 * kSecond);
  EXPECT_NEAR(received.first_percent, 75, 1.0);
  EXPECT_GE(received.busy_percent, 97.5);
}

TEST(Arbiter, eight_equal_tenants_get_an_eighth_each) {
  Node node;
  std::vector<Tenant*> tenants;
  for (int i = 0; i < 8; i++) tenants.push_back(&node.add(12, model::saturating(200 * kMicrosecond)));
  for (Tenant* tenant : tenants) tenant->start();
  node.clock.run_until(10 * kSecond);
  for (Tenant* tenant : tenants) EXPECT_NEAR(static_cast<double>(tenant->busy_ns()) / 1e8, 12.25, 0.25);
}

TEST(Arbiter, a_lone_tenant_loses_nothing) {
  Node node;
  Tenant& alone = node.add(25, model::saturating(kMillisecond));
  alone.start();
  node.clock.run_until(kSecond);
  EXPECT_GE(alone.busy_ns(), kSecond * 995 / 1000);
}

TEST(Arbiter, an_idle_neighbour_with_a_context_costs_nothing) {
  Node node;
  Tenant& busy = node.add(25, model::saturating(kMillisecond));
  Tenant& idle = node.add(75, model::launch_sync(kMillisecond, 100 * kSecond));
  idle.start();
  busy.start();
  node.clock.run_until(10 * kSecond);
  EXPECT_GE(busy.busy_ns(), 10 * kSecond * 99 / 100);
}

TEST(Arbiter, cap_holds_alone_from_the_first_second) {
  for (const uint64_t kernel_ns : {50 * kMicrosecond, kMillisecond, 5 * kMillisecond}) {
    Node node;
    Tenant& capped = node.add(25, model::saturating(kernel_ns), 25);
    capped.start();
    node.clock.run_until(kSecond);
    EXPECT_NEAR(static_cast<double>(capped.busy_ns()) / 1e7, 25, 1.0) << kernel_ns;
  }
}

TEST(Arbiter, cap_holds_for_long_kernels_over_ten_seconds) {
  Node node;
  Tenant& capped = node.add(25, model::saturating(50 * kMillisecond), 25);
  capped.start();
  node.clock.run_until(10 * kSecond);
  EXPECT_NEAR(static_cast<double>(capped.busy_ns()) / 1e8, 25, 1.0);
}

TEST(Arbiter, cap_counts_gpu_time_of_a_launch_and_sync_loop_not_its_gaps) {
  Node node;
  Tenant& capped = node.add(25, model::launch_sync(50 * kMicrosecond, 50 * kMicrosecond), 25);
  capped.start();
  node.clock.run_until(kSecond);
  EXPECT_NEAR(static_cast<double>(capped.busy_ns()) / 1e7, 25, 1.5);
}

TEST(Arbiter, cap_holds_beside_a_neighbour_that_takes_the_rest) {
  Node node;
  Tenant& capped = node.add(25, model::saturating(kMillisecond), 25);
  Tenant& other = node.add(50, model::saturating(kMillisecond));
  capped.start();
  other.start();
  node.clock.run_until(10 * kSecond);
  EXPECT_NEAR(static_cast<double>(capped.busy_ns()) / 1e8, 25, 1.0);
  EXPECT_GE(static_cast<double>(other.busy_ns()) / 1e8, 71);
}

TEST(Arbiter, shares_converge_within_a_second_of_a_start_and_a_stop) {
  Node node;
  Tenant& a = node.add(75, model::saturating(kMillisecond));
  Tenant& b = node.add(25, model::saturating(kMillisecond));
  a.start();
  node.clock.run_until(5 * kSecond);
  b.start();
  node.clock.run_until(5 * kSecond + 100 * kMillisecond);
  const uint64_t a_before = a.busy_ns(), b_before = b.busy_ns();
  node.clock.run_until(6 * kSecond + 100 * kMillisecond);
  const double got_a = static_cast<double>(a.busy_ns() - a_before);
  const double got_b = static_cast<double>(b.busy_ns() - b_before);
  EXPECT_NEAR(100 * got_a / (got_a + got_b), 75, 3);
  b.stop();
  node.clock.run_until(6 * kSecond + 200 * kMillisecond);
  const uint64_t a_alone = a.busy_ns();
  node.clock.run_until(7 * kSecond + 200 * kMillisecond);
  EXPECT_GE(a.busy_ns() - a_alone, kSecond * 99 / 100);
}

TEST(Arbiter, an_idle_slice_saves_up_no_credit) {
  Node node;
  Tenant& steady = node.add(50, model::saturating(kMillisecond));
  Tenant& late = node.add(50, model::saturating(kMillisecond));
  steady.start();
  node.clock.run_until(20 * kSecond);
  late.start();
  const uint64_t before = steady.busy_ns();
  node.clock.run_until(20 * kSecond + 200 * kMillisecond);
  EXPECT_NEAR(static_cast<double>(steady.busy_ns() - before) / 2e6, 49, 5);
}

TEST(Arbiter, a_stopped_holder_does_not_hold_up_its_neighbour) {
  Node node;
  Tenant& frozen = node.add(50, model::saturating(kMillisecond));
  Tenant& other = node.add(50, model::saturating(kMillisecond));
  frozen.start();
  other.start();
  node.clock.run_until(kSecond);
  frozen.freeze();
  node.clock.run_until(kSecond + 100 * kMillisecond);
  const uint64_t before = other.busy_ns();
  node.clock.run_until(3 * kSecond);
  // Its share of the time is lost while it looks as if it would launch, never more.
  EXPECT_GE(static_cast<double>(other.busy_ns() - before) / 19e6, 45);
}

// It is stopped after a launch, which nobody rings for, and before it is through with its turn.
TEST(Arbiter, a_turn_that_nobody_rings_in_is_passed_on_in_time) {
  limiter::Arbiter arbiter;
  std::vector<limiter::Command> commands;
  limiter::Observation waits, launched;
  waits.contexts = launched.contexts = 1;
  waits.waiting = launched.outstanding = true;
  for (const limiter::SliceKey key : {1, 2}) arbiter.set(key, {1, 50, 100, false}, 0);
  const auto timed_turn = [&] {
    return std::find_if(commands.begin(), commands.end(), [](const limiter::Command& command) {
      return command.mode == limiter::Mode::kTurn && command.deadline_ns != UINT64_MAX;
    });
  };
  uint64_t now = 0;
  for (; timed_turn() == commands.end() || timed_turn()->deadline_ns <= now; now += kMillisecond) {
    ASSERT_LT(now, kSecond);
    waits.active_ns = now;  // as if they had had work all the time: they need turns
    for (const limiter::SliceKey key : {1, 2}) arbiter.observe(key, waits, now);
    commands.clear();
    arbiter.step(now, &commands);
  }
  const limiter::SliceKey stopped = timed_turn()->slice;
  const uint64_t deadline_ns = timed_turn()->deadline_ns;
  bool passed_on = false;
  while (!passed_on) {
    now = arbiter.next_wake_ns();
    ASSERT_LE(now, deadline_ns + 20 * kMillisecond);
    arbiter.observe(stopped, launched, now);
    commands.clear();
    arbiter.step(now, &commands);
    passed_on = std::any_of(commands.begin(), commands.end(), [&](const limiter::Command& command) {
      return command.mode == limiter::Mode::kTurn && command.slice != stopped;
    });
  }
}

TEST(Arbiter, a_kernel_that_never_ends_is_overlapped) {
  Node node;
  Tenant& endless = node.add(50, model::saturating(3600 * kSecond));
  Tenant& other = node.add(50, model::saturating(kMillisecond));
  endless.start();
  other.start();
  node.clock.run_until(kSecond);
  const uint64_t before = other.busy_ns();
  node.clock.run_until(3 * kSecond);
  EXPECT_GE(static_cast<double>(other.busy_ns() - before) / 2e7, 40);
}

TEST(Arbiter, slices_on_different_gpus_do_not_wait_for_each_other) {
  Node::Settings settings;
  settings.gpus = 2;
  Node node(settings);
  Tenant& left = node.add(50, model::saturating(kMillisecond), 100, 0b01);
  Tenant& right = node.add(50, model::saturating(kMillisecond), 100, 0b10);
  left.start();
  right.start();
  node.clock.run_until(kSecond);
  EXPECT_GE(left.busy_ns(), kSecond * 99 / 100);
  EXPECT_GE(right.busy_ns(), kSecond * 99 / 100);
}

TEST(Arbiter, a_slice_on_two_gpus_is_not_starved_by_slices_on_one) {
  Node::Settings settings;
  settings.gpus = 2;
  Node node(settings);
  Tenant& both = node.add(50, model::saturating(kMillisecond), 100, 0b11);
  Tenant& left = node.add(50, model::saturating(kMillisecond), 100, 0b01);
  Tenant& right = node.add(50, model::saturating(kMillisecond), 100, 0b10);
  both.start();
  left.start();
  right.start();
  node.clock.run_until(10 * kSecond);
  EXPECT_NEAR(static_cast<double>(both.busy_ns()) / 1e8, 49, 3);
  EXPECT_NEAR(static_cast<double>(left.busy_ns()) / 1e8, 49, 3);
  EXPECT_NEAR(static_cast<double>(right.busy_ns()) / 1e8, 49, 3);
}

TEST(Arbiter, a_removed_holder_frees_its_gpu) {
  limiter::Arbiter arbiter;
  std::vector<limiter::Command> commands;
  arbiter.set(1, {1, 50, 100, false}, 0);
  arbiter.set(2, {1, 50, 100, false}, 0);
  limiter::Observation waiting;
  waiting.contexts = 1;
  waiting.waiting = true;
  arbiter.observe(1, waiting, 0);
  arbiter.observe(2, waiting, 0);
  arbiter.step(0, &commands);
  arbiter.remove(1);
  commands.clear();
  arbiter.step(1000, &commands);
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].slice, 2u);
  EXPECT_EQ(commands[0].mode, limiter::Mode::kOpen);
}

TEST(Arbiter, nothing_to_do_means_no_timer) {
  Node node;
  Tenant& a = node.add(50, model::saturating(kMillisecond));
  Tenant& b = node.add(50, model::saturating(kMillisecond));
  a.start();
  b.start();
  node.clock.run_until(kSecond);
  a.stop();
  b.stop();
  node.clock.run_until(2 * kSecond);
  node.ring();
  EXPECT_EQ(node.arbiter.next_wake_ns(), UINT64_MAX);
  EXPECT_FALSE(node.arbiter.contested());
}

TEST(Arbiter, accounts_tell_what_was_wanted_and_waited_for) {
  Node node;
  node.add(75, model::launch_sync(100 * kMicrosecond, 10 * kMicrosecond)).start();
  node.add(25, model::launch_sync(100 * kMicrosecond, 10 * kMicrosecond)).start();
  Node part_time;
  part_time.add(50, model::launch_sync(kMillisecond, kMillisecond)).start();
  part_time.add(50, model::launch_sync(kMillisecond, 100 * kSecond)).start();
  for (Node* each : {&node, &part_time}) {
    each->clock.run_until(2 * kSecond);
    each->observe();
  }
  const limiter::Account often = node.arbiter.account(1), rarely = node.arbiter.account(2);
  EXPECT_NEAR(static_cast<double>(often.waited_ns) / 2e9, 0.25, 0.04);
  EXPECT_NEAR(static_cast<double>(rarely.waited_ns) / 2e9, 0.75, 0.04);
  EXPECT_NEAR(static_cast<double>(often.wanted_ns) / 2e9, 0.93, 0.05);
  EXPECT_NEAR(static_cast<double>(rarely.wanted_ns) / 2e9, 0.97, 0.05);
  EXPECT_NEAR(static_cast<double>(part_time.arbiter.account(1).wanted_ns) / 2e9, 0.5, 0.03);
}

// A turn is granted on the ring of the one before, and nobody looks at the slice that waited until it rings.
TEST(Arbiter, waiting_is_accounted_for_up_to_the_grant) {
  limiter::Arbiter arbiter;
  std::vector<limiter::Command> commands;
  arbiter.set(1, {1, 50, 25, false}, 0);
  arbiter.set(2, {1, 50, 100, false}, 0);
  limiter::Observation seen;
  seen.contexts = 1;
  arbiter.observe(2, seen, 0);
  seen.waiting = true;
  arbiter.observe(1, seen, 0);
  arbiter.step(0, &commands);  // its bucket is empty
  EXPECT_EQ(arbiter.account(1).turns, 0u);
  arbiter.step(20 * kMillisecond, &commands);
  EXPECT_EQ(arbiter.account(1).turns, 1u);
  seen.waiting = false;
  arbiter.observe(1, seen, 21 * kMillisecond);
  EXPECT_EQ(arbiter.account(1).waited_ns, 20 * kMillisecond);
  EXPECT_EQ(arbiter.account(1).wanted_ns, 20 * kMillisecond);
}

// --- Without turns, and in and out of them.

// What the same tenants reach by the driver's time-slicing alone.
double busy_without_slices(const std::vector<model::Load>& loads, uint64_t duration_ns) {
  Node::Settings settings;
  settings.sliced = false;
  Node node(settings);
  for (const model::Load& load : loads) node.add(10, load).start();
  node.clock.run_until(duration_ns);
  return 100.0 * static_cast<double>(node.busy_ns()) / static_cast<double>(duration_ns);
}

class PartTimeTenants : public testing::TestWithParam<std::tuple<uint64_t, uint64_t, int>> {};

TEST_P(PartTimeTenants, are_as_fast_as_the_driver_s_own_time_slicing) {
  const auto [kernel_us, gap_us, count] = GetParam();
  const std::vector<model::Load> loads(static_cast<size_t>(count),
                                       model::launch_sync(kernel_us * kMicrosecond, gap_us * kMicrosecond));
  Node node;
  for (const model::Load& load : loads) node.add(static_cast<uint32_t>(100 / count), load).start();
  node.clock.run_until(5 * kSecond);
  EXPECT_GE(static_cast<double>(node.busy_ns()) / 5e7, 0.95 * busy_without_slices(loads, 5 * kSecond));
}

INSTANTIATE_TEST_SUITE_P(Gaps, PartTimeTenants,
                         testing::Values(std::tuple(500, 500, 2), std::tuple(500, 500, 3),
                                         std::tuple(200, 200, 2), std::tuple(2000, 500, 2),
                                         std::tuple(5000, 5000, 2), std::tuple(20'000, 20'000, 2),
                                         std::tuple(500, 50, 2), std::tuple(20, 20, 2)));

TEST(Arbiter, one_that_always_has_work_keeps_its_guarantee_beside_one_that_has_some) {
  for (const uint32_t guarantee : {50u, 75u, 85u}) {
    Node node;
    Tenant& busy = node.add(guarantee, model::saturating(kMillisecond));
    Tenant& other = node.add(100 - guarantee, model::launch_sync(2 * kMillisecond, 500 * kMicrosecond));
    busy.start();
    other.start();
    node.clock.run_until(10 * kSecond);
    // Of what is left by a switch each way for every kernel of the other one, and its idle grace.
    EXPECT_GE(static_cast<double>(busy.busy_ns()) / 1e8, 0.93 * guarantee) << guarantee;
  }
}

TEST(Arbiter, turns_end_when_they_are_needed_no_more) {
  Node node;
  Tenant& first = node.add(50, model::saturating(kMillisecond));
  Tenant& second = node.add(50, model::saturating(kMillisecond));
  Tenant& third = node.add(50, model::launch_sync(500 * kMicrosecond, 500 * kMicrosecond));
  Tenant& fourth = node.add(50, model::launch_sync(500 * kMicrosecond, 500 * kMicrosecond));
  first.start();
  second.start();
  node.clock.run_until(kSecond);
  const uint64_t turns = node.turns();
  EXPECT_GE(turns, 150u);
  first.stop();
  second.stop();
  third.start();
  fourth.start();
  node.clock.run_until(kSecond + 300 * kMillisecond);
  const uint64_t settled = node.turns();
  node.clock.run_until(3 * kSecond);
  EXPECT_EQ(node.turns(), settled);
}

// --- The latency class: 2 ms of kernels every 20 ms.

struct Requests {
  double p99_ms;
  double batch_of_rest;  // what batch tenants received of the time that the requests left
};

Requests beside_batch(uint32_t share, bool latency, int batch_count, uint64_t batch_kernel_ns) {
  Node node;
  Tenant& requests =
      node.add(share, model::requests(20, 100 * kMicrosecond, 20 * kMillisecond), 100, 1, latency);
  for (int i = 0; i < batch_count; i++) {
    node.add((100 - share) / static_cast<uint32_t>(batch_count), model::saturating(batch_kernel_ns)).start();
  }
  requests.start();
  node.clock.run_until(30 * kSecond);
  std::vector<uint64_t> latencies_ns = requests.latencies_ns();
  EXPECT_GE(latencies_ns.size(), 1400u);
  std::sort(latencies_ns.begin(), latencies_ns.end());
  const double rest = 30e9 - static_cast<double>(requests.busy_ns());
  return {static_cast<double>(latencies_ns[latencies_ns.size() * 99 / 100]) / 1e6,
          static_cast<double>(node.busy_ns() - requests.busy_ns()) / rest};
}

// Twice its own 2 ms, the driver's slice, two switches and the hand-over.
constexpr double kLatencyBoundMs = 2 * 2 + 2 + 2 * 0.1 + 0.15;

TEST(Arbiter, latency_class_waits_for_no_more_than_the_driver_s_slice) {
  for (const uint64_t kernel_ns : {kMillisecond, 10 * kMillisecond, 50 * kMillisecond}) {
    const Requests requests = beside_batch(50, true, 1, kernel_ns);
    EXPECT_LE(requests.p99_ms, kLatencyBoundMs) << kernel_ns;
    EXPECT_GE(requests.batch_of_rest, 0.97) << kernel_ns;
  }
}

TEST(Arbiter, latency_class_waits_for_no_turn_of_others) {
  for (const uint64_t kernel_ns : {kMillisecond, 10 * kMillisecond, 50 * kMillisecond}) {
    const Requests requests = beside_batch(20, true, 2, kernel_ns);
    EXPECT_LE(requests.p99_ms, kLatencyBoundMs) << kernel_ns;
    EXPECT_GE(requests.batch_of_rest, 0.95) << kernel_ns;
  }
}

TEST(Arbiter, latency_class_is_no_way_around_the_share) {
  for (const uint32_t share : {20u, 50u}) {
    Node node;
    Tenant& greedy = node.add(share, model::saturating(kMillisecond), 100, 1, true);
    Tenant& other = node.add(100 - share, model::saturating(10 * kMillisecond));
    greedy.start();
    other.start();
    node.clock.run_until(10 * kSecond);
    EXPECT_NEAR(100 * static_cast<double>(greedy.busy_ns()) / static_cast<double>(node.busy_ns()), share,
                1.0);
    EXPECT_GE(static_cast<double>(node.busy_ns()) / 1e8, 97.5);
  }
}

// Requests that together want more than the share: what is beyond it queues as others do.
TEST(Arbiter, latency_class_beyond_its_share_waits) {
  Node node;
  Tenant& requests = node.add(10, model::requests(60, 100 * kMicrosecond, 20 * kMillisecond), 100, 1, true);
  Tenant& first = node.add(45, model::saturating(kMillisecond));
  Tenant& second = node.add(45, model::saturating(kMillisecond));
  requests.start();
  first.start();
  second.start();
  node.clock.run_until(10 * kSecond);
  EXPECT_LE(static_cast<double>(requests.busy_ns()) / 1e8, 11.5);
  EXPECT_GE(static_cast<double>(first.busy_ns()) / 1e8, 42);
  EXPECT_GE(static_cast<double>(second.busy_ns()) / 1e8, 42);
}

// Any shares, any kernels, any gaps: every saturating tenant gets its share of what there is, nobody starves.
TEST(Arbiter, random_tenants_get_their_shares) {
  for (unsigned seed = 1; seed <= 20; seed++) {
    std::mt19937 random(seed);
    Node node;
    std::vector<Tenant*> tenants;
    std::vector<uint32_t> shares;
    const int count = 2 + static_cast<int>(random() % 5);
    uint32_t sum = 0;
    for (int i = 0; i < count; i++) {
      const uint32_t share = 5 + random() % (100 / count - 4);
      const uint64_t kernel_ns =
          static_cast<uint64_t>(std::exp(std::log(20e3) + (random() % 1000) / 1000.0 * std::log(500)));
      shares.push_back(share);
      sum += share;
      tenants.push_back(&node.add(share, model::saturating(kernel_ns)));
    }
    for (Tenant* tenant : tenants) tenant->start();
    node.clock.run_until(10 * kSecond);
    double busy = 0;
    for (const Tenant* tenant : tenants) busy += static_cast<double>(tenant->busy_ns());
    EXPECT_GE(busy / 1e8, 97) << "seed " << seed;
    for (int i = 0; i < count; i++) {
      EXPECT_NEAR(100.0 * static_cast<double>(tenants[i]->busy_ns()) / busy, 100.0 * shares[i] / sum, 1.0)
          << "seed " << seed;
    }
  }
}

}  // namespace
