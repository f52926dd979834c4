// SPDX-License-Identifier: Apache-2.0
//
// What holds for any tenants, over millions of steps of a fake clock: bounded lag (and with it shares, and
// that nobody starves), work conservation, caps, and clocks that jump.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "limiter/arbiter.h"
#include "tests/limiter/gpu_model.h"

namespace {

using model::kMicrosecond;
using model::kMillisecond;
using model::kSecond;
using model::Node;
using model::Tenant;

uint64_t some_length_ns(std::mt19937& random, double from_ns, double to_ns) {
  return static_cast<uint64_t>(from_ns *
                               std::pow(to_ns / from_ns, static_cast<double>(random() % 100'000) / 1e5));
}

struct Member {
  Tenant* tenant;
  double share;
  double longest_turn_ns;
  uint64_t before_ns = 0;
};

// Start-time fair queueing: two flows that always have work differ, over any interval, by no more than
// l1 / share1 + l2 / share2, where l is the longest that one is served at a time (Goyal, Vin, Cheng, 1996,
// theorem 1). Here that is a quantum, and two kernels that may be under way at its end. Hand-overs and
// switches are charged as time of the turn that they belong to: some 0.3 ms in each.
TEST(ArbiterProperties, lag_is_bounded) {
  for (unsigned seed = 1; seed <= 30; seed++) {
    std::mt19937 random(seed);
    Node node;
    std::vector<Member> members;
    const int count = 2 + static_cast<int>(random() % 7);
    for (int i = 0; i < count; i++) {
      const uint32_t share = 3 + random() % (100 / static_cast<uint32_t>(count) - 2);
      const uint64_t kernel_ns = some_length_ns(random, 20e3, 20e6);
      members.push_back({&node.add(share, model::saturating(kernel_ns)), share / 100.0,
                         5e6 + 2 * static_cast<double>(kernel_ns)});
    }
    for (Member& member : members) member.tenant->start();
    node.clock.run_until(kSecond);
    for (int window = 0; window < 20; window++) {
      const uint64_t turns = node.turns(), all_ns = node.busy_ns();
      for (Member& member : members) member.before_ns = member.tenant->busy_ns();
      node.clock.run_until(node.clock.now_ns() + 500 * kMillisecond);
      const double lost_ns = 0.3e6 * static_cast<double>(node.turns() - turns);
      for (const Member& one : members) {
        for (const Member& other : members) {
          const double got = static_cast<double>(one.tenant->busy_ns() - one.before_ns) / one.share;
          const double others = static_cast<double>(other.tenant->busy_ns() - other.before_ns) / other.share;
          EXPECT_LE(got - others, (one.longest_turn_ns + lost_ns * one.share) / one.share +
                                      (other.longest_turn_ns + lost_ns * other.share) / other.share)
              << "seed " << seed << ", window " << window;
        }
      }
      // Where turns of long kernels overlap, the driver switches between them.
      EXPECT_GE(node.busy_ns() - all_ns, 500 * kMillisecond * 965 / 1000) << "seed " << seed;
    }
  }
}

// What the driver's own time-slicing makes of the same loads.
double busy_without_slices(const std::vector<model::Load>& loads) {
  Node::Settings settings;
  settings.sliced = false;
  Node node(settings);
  for (const model::Load& load : loads) node.add(10, load).start();
  node.clock.run_until(3 * kSecond);
  return static_cast<double>(node.busy_ns()) / 3e9;
}

// Whatever others do: where one always has work, the GPU is used nine tenths as well as without slices, or
// better (a holder's gap is waited for, for idle_grace_ns); that one has what it is guaranteed; one with a
// cap gets no more than that, a bucket of four quanta, and the end of a turn.
TEST(ArbiterProperties, nothing_is_wasted_and_caps_hold_among_any_tenants) {
  for (unsigned seed = 1; seed <= 30; seed++) {
    std::mt19937 random(seed);
    const uint64_t capped_kernel_ns = some_length_ns(random, 50e3, 5e6);
    const uint32_t cap = 10 + random() % 20;
    std::vector<model::Load> loads = {model::saturating(some_length_ns(random, 50e3, 5e6)),
                                      model::saturating(capped_kernel_ns)};
    for (uint64_t more = 1 + random() % 4; more > 0; more--) {
      const uint64_t kernel_ns = some_length_ns(random, 50e3, 5e6);
      loads.push_back(model::launch_sync(kernel_ns, some_length_ns(random, 1e6, 100e6)));
    }
    Node node;
    Tenant& busy = node.add(40, loads[0]);
    Tenant& capped = node.add(10, loads[1], cap);
    busy.start();
    capped.start();
    for (size_t i = 2; i < loads.size(); i++) {
      node.clock.run_until(node.clock.now_ns() + random() % (300 * kMillisecond));
      node.add(10, loads[i]).start();
    }
    const double least = std::min(0.97, 0.9 * busy_without_slices(loads));
    for (int window = 0; window < 10; window++) {
      const uint64_t all_ns = node.busy_ns(), busy_ns = busy.busy_ns(), capped_ns = capped.busy_ns();
      node.clock.run_until(node.clock.now_ns() + kSecond);
      EXPECT_GE(static_cast<double>(node.busy_ns() - all_ns) / 1e9, least) << "seed " << seed;
      EXPECT_GE(busy.busy_ns() - busy_ns, kSecond * 36 / 100) << "seed " << seed;
      EXPECT_LE(capped.busy_ns() - capped_ns, kSecond * cap / 100 + 25 * kMillisecond + 2 * capped_kernel_ns)
          << "seed " << seed;
    }
  }
}

// Two slices that always wait, and do in their turns what they are told, with a clock of their own.
class Turns {
 public:
  Turns() {
    for (const limiter::SliceKey key : {1, 2}) arbiter_.set(key, {1, 50, 100, false}, now_ns);
  }

  // For so long; what each slice's turns took.
  std::array<uint64_t, 2> run(uint64_t duration_ns) {
    std::array<uint64_t, 2> held_ns = {};
    for (const uint64_t end_ns = now_ns + duration_ns; now_ns < end_ns; now_ns += 100 * kMicrosecond) {
      for (size_t i = 0; i < 2; i++) {
        if (runs(i)) {
          held_ns[i] += 100 * kMicrosecond;
          active_ns_[i] += 100 * kMicrosecond;
        }
        limiter::Observation seen;
        seen.contexts = 1;
        seen.waiting = !runs(i);
        seen.outstanding = runs(i);
        seen.closing = !runs(i);
        seen.drained_ns = seen.drain_expected_ns = now_ns;
        seen.active_ns = seen.occupied_ns = active_ns_[i];
        arbiter_.observe(i + 1, seen, now_ns);
      }
      std::vector<limiter::Command> commands;
      arbiter_.step(now_ns, &commands);
      for (const limiter::Command& command : commands) told_[command.slice - 1] = command;
    }
    return held_ns;
  }

  uint64_t now_ns = 10'000 * kSecond;

 private:
  bool runs(size_t i) const { return told_[i].mode == limiter::Mode::kTurn && now_ns < told_[i].deadline_ns; }

  limiter::Arbiter arbiter_;
  limiter::Command told_[2] = {{1, limiter::Mode::kParked, 0, true}, {2, limiter::Mode::kParked, 0, true}};
  uint64_t active_ns_[2] = {};
};

// An hour forward while one of them runs is no hour that it owes; an hour back is no turn of an hour.
TEST(ArbiterProperties, a_clock_that_jumps_costs_a_few_turns) {
  for (const int64_t jump_s : {3600, -3600, 60, -60, 2, -2}) {
    Turns turns;
    turns.run(5 * kSecond);
    turns.now_ns += static_cast<uint64_t>(jump_s) * kSecond;
    turns.run(3 * kSecond);  // a second that is charged, and paid back
    const auto [first_ns, second_ns] = turns.run(kSecond);
    EXPECT_NEAR(static_cast<double>(first_ns), 0.5e9, 0.05e9) << jump_s;
    EXPECT_NEAR(static_cast<double>(second_ns), 0.5e9, 0.05e9) << jump_s;
  }
}

}  // namespace
