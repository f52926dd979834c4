// SPDX-License-Identifier: Apache-2.0
#include "broker/delays.h"

#include <gtest/gtest.h>

#include <numeric>

namespace {

using broker::Delays;
using limiter::Standing;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1'000 * kMs;
constexpr uint64_t kBegin = 1'000 * kSecond;
constexpr uint64_t kLateFrom = kMs;
constexpr uint64_t kNever = UINT64_MAX;

Standing idle() { return {.gpu_mask = 1, .idle_since_ns = kBegin}; }
Standing idle_since(uint64_t since_ns) { return {.gpu_mask = 1, .idle_since_ns = since_ns}; }
Standing waits() { return {.gpu_mask = 1, .waits = true, .idle_since_ns = kBegin}; }
Standing capped() { return {.gpu_mask = 1, .waits = true, .capped = true, .idle_since_ns = kBegin}; }
Standing turn(uint64_t deadline_ns, uint64_t idle_since_ns = kNever) {
  return {.gpu_mask = 1, .on_gpu = true, .deadline_ns = deadline_ns, .idle_since_ns = idle_since_ns};
}

uint64_t parts(const Delays::Window& window) {
  return std::accumulate(
      window.neighbours.begin(), window.neighbours.end(),
      window.open_ns + window.idle_ns + window.received_ns + window.capped_ns + window.handover_ns +
          window.gaps_ns,
      [](uint64_t sum, const auto& entry) { return sum + entry.second.waited_ns + entry.second.beside_ns; });
}

struct DelaysTest : testing::Test {
  Delays delays{kLateFrom};
  uint64_t now_ns = kBegin;

  // After `ms`, that is how they stand; so much of it was received and wanted by slice 1.
  void after(uint64_t ms, std::vector<Standing> standings, uint64_t received_ns = 0, uint64_t wanted_ns = 0) {
    now_ns += ms * kMs;
    std::vector<Delays::Slice> slices;
    for (size_t i = 0; i < standings.size(); ++i) slices.push_back({i + 1, standings[i], 0, 0});
    slices[0].received_ns = received_ += received_ns;
    slices[0].wanted_ns = wanted_ += wanted_ns;
    delays.advance(slices, now_ns);
  }
  Delays::Window last_second() const { return delays.windows(1).at(0); }
  Delays::Window last_minute() const { return delays.windows(1).at(1); }

  uint64_t received_ = 0, wanted_ = 0;
};

TEST_F(DelaysTest, waiting_is_put_down_to_whoever_is_on_the_gpu) {
  after(0, {waits(), turn(kBegin + 5 * kMs), idle()});
  after(4, {waits(), idle_since(kBegin + 4 * kMs), turn(kBegin + 9 * kMs)}, 0, 4 * kMs);
  after(3, {turn(kNever), idle(), idle_since(kBegin + 7 * kMs)}, 0, 3 * kMs);
  after(2, {idle(), idle(), idle()}, 2 * kMs, 2 * kMs);
  after(1, {idle(), idle(), idle()});
  const Delays::Window window = last_second();
  EXPECT_EQ(window.span_ns, 10 * kMs);
  EXPECT_EQ(window.neighbours.at(2).waited_ns, 4 * kMs);
  EXPECT_EQ(window.neighbours.at(3).waited_ns, 3 * kMs);
  EXPECT_EQ(window.handover_ns, 0u);
  EXPECT_EQ(window.received_ns, 2 * kMs);
  EXPECT_EQ(window.idle_ns, 1 * kMs);
  EXPECT_EQ(parts(window), window.span_ns);
}

TEST_F(DelaysTest, a_turn_is_waited_for_until_its_work_has_drained) {
  after(0, {waits(), turn(kBegin + 5 * kMs)});
  after(4, {turn(kNever), idle_since(kBegin + 3 * kMs)}, 0, 4 * kMs);
  EXPECT_EQ(last_second().neighbours.at(2).waited_ns, 3 * kMs);
  EXPECT_EQ(last_second().neighbours.at(2).late_ns, 0u);
  EXPECT_EQ(last_second().handover_ns, 1 * kMs);
  EXPECT_EQ(delays.handover_ns(1), 1 * kMs);
  EXPECT_EQ(parts(last_second()), 4 * kMs);
}

TEST_F(DelaysTest, what_a_turn_takes_past_its_deadline_is_late) {
  const uint64_t deadline = kBegin + 5 * kMs;
  after(0, {waits(), turn(deadline)});
  after(10, {waits(), turn(deadline)}, 0, 10 * kMs);
  after(10, {waits(), turn(kBegin + 25 * kMs)}, 0, 10 * kMs);  // and the next one, half a millisecond late
  after(6, {turn(kNever), idle_since(now_ns + 5 * kMs + kMs / 2)}, 0, 6 * kMs);
  const Delays::Neighbour neighbour = last_second().neighbours.at(2);
  EXPECT_EQ(neighbour.waited_ns, 25 * kMs + kMs / 2);
  EXPECT_EQ(neighbour.late_ns, 15 * kMs + kMs / 2);
  EXPECT_EQ(neighbour.longest_late_ns, 15 * kMs);
  EXPECT_EQ(neighbour.late_turns, 1u);
}

TEST_F(DelaysTest, several_on_the_gpu_share_the_blame) {
  after(0, {waits(), turn(kBegin + 5 * kMs), turn(kBegin + 50 * kMs)});
  after(8, {waits(), turn(kBegin + 5 * kMs), turn(kBegin + 50 * kMs)}, 0, 8 * kMs);
  EXPECT_EQ(last_second().neighbours.at(2).waited_ns, 4 * kMs);
  EXPECT_EQ(last_second().neighbours.at(3).waited_ns, 4 * kMs);
  EXPECT_EQ(last_second().neighbours.at(2).late_ns, 3 * kMs);
  EXPECT_EQ(last_second().neighbours.at(3).late_ns, 0u);
  EXPECT_EQ(parts(last_second()), 8 * kMs);
}

TEST_F(DelaysTest, its_own_cap_is_nobody_elses_doing) {
  after(0, {capped(), turn(kNever)});
  after(8, {turn(kNever), idle()}, 0, 8 * kMs);
  after(2, {idle(), idle()}, 2 * kMs, 2 * kMs);
  EXPECT_EQ(last_second().capped_ns, 8 * kMs);
  EXPECT_TRUE(last_second().neighbours.empty());
  EXPECT_EQ(last_second().received_ns, 2 * kMs);
  EXPECT_EQ(parts(last_second()), 10 * kMs);
}

TEST_F(DelaysTest, work_under_way_that_got_nothing_was_beside_others_or_in_gaps) {
  after(0, {turn(kNever), turn(kNever)});
  after(10, {turn(kNever), idle()}, 3 * kMs, 10 * kMs);
  EXPECT_EQ(last_second().neighbours.at(2).beside_ns, 5 * kMs);
  EXPECT_EQ(last_second().gaps_ns, 2 * kMs);
  after(10, {turn(kNever), idle()}, 9 * kMs, 10 * kMs);
  EXPECT_EQ(last_second().gaps_ns, 3 * kMs);
  EXPECT_EQ(parts(last_second()), 20 * kMs);
}

TEST_F(DelaysTest, slices_on_other_gpus_are_in_nobodys_way) {
  Standing elsewhere = turn(kNever);
  elsewhere.gpu_mask = 2;
  after(0, {waits(), elsewhere});
  after(5, {waits(), elsewhere}, 0, 5 * kMs);
  EXPECT_TRUE(last_second().neighbours.empty());
  EXPECT_EQ(last_second().handover_ns, 5 * kMs);
}

TEST_F(DelaysTest, an_open_gate_is_neither_idle_nor_delayed) {
  Standing open = idle();
  open.open = true;
  after(0, {open});
  after(500, {open});
  EXPECT_EQ(last_second().open_ns, 500 * kMs);
  EXPECT_EQ(parts(last_second()), last_second().span_ns);
}

TEST_F(DelaysTest, windows_forget) {
  after(0, {waits(), turn(kNever)});
  after(500, {idle(), idle_since(kBegin + 500 * kMs)}, 0, 500 * kMs);
  after(3'000, {idle(), idle()});
  EXPECT_EQ(last_second().idle_ns, last_second().span_ns);
  EXPECT_GE(last_second().span_ns, kSecond);
  EXPECT_LE(last_second().span_ns, 2 * kSecond);
  EXPECT_EQ(last_minute().neighbours.at(2).waited_ns, 500 * kMs);
  after(300'000, {idle(), idle()});
  EXPECT_EQ(last_minute().idle_ns, last_minute().span_ns);
  EXPECT_GE(last_minute().span_ns, 60 * kSecond);
  EXPECT_LE(last_minute().span_ns, 70 * kSecond);
}

TEST_F(DelaysTest, an_interval_across_windows_is_parted) {
  after(0, {waits(), turn(kNever)});
  after(10'000, {waits(), turn(kNever)}, 0, 10 * kSecond);
  EXPECT_EQ(last_second().span_ns, kSecond);
  EXPECT_EQ(last_second().neighbours.at(2).waited_ns, kSecond);
  EXPECT_EQ(last_minute().neighbours.at(2).waited_ns, 10 * kSecond);
}

TEST_F(DelaysTest, nothing_is_known_of_slices_that_have_gone_or_never_were) {
  after(0, {waits(), turn(kNever)});
  delays.remove(1);
  EXPECT_TRUE(delays.windows(1).empty());
  EXPECT_TRUE(delays.windows(7).empty());
  EXPECT_EQ(delays.handover_ns(1), 0u);
}

}  // namespace
