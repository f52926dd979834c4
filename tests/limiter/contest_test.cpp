// SPDX-License-Identifier: Apache-2.0
#include "limiter/contest.h"

#include <gtest/gtest.h>

namespace {

using limiter::Contest;

constexpr uint64_t kQuantum = 5'000'000, kWindow = 20'000'000, kHold = 100'000'000;

Contest::Member member(double guarantee, double wanted, double occupied = 0) {
  return {guarantee, static_cast<uint64_t>(wanted * kWindow), static_cast<uint64_t>(occupied * kWindow), 0};
}

// After how many windows like this one turns are needed; 0: not within a hundred.
int windows_until_turns(std::vector<Contest::Member> members) {
  const Contest contest({kQuantum});
  for (int i = 1; i <= 100; ++i) {
    if (contest.needs_turns(members, kWindow)) return i;
  }
  return 0;
}

TEST(Contest, two_that_could_use_all_of_the_gpu_need_turns_at_once) {
  EXPECT_EQ(windows_until_turns({member(0.5, 1, 1), member(0.5, 0.95, 0.95)}), 1);
  EXPECT_EQ(windows_until_turns({member(0.1, 1, 1), member(0.1, 1, 1), member(0.1, 0.2, 0.2)}), 1);
}

TEST(Contest, part_time_slices_need_none) {
  EXPECT_EQ(windows_until_turns({member(0.5, 0.6, 0.6), member(0.5, 0.7, 0.7)}), 0);
  EXPECT_EQ(windows_until_turns({member(1, 1, 1)}), 0);
  EXPECT_EQ(windows_until_turns({}), 0);
}

TEST(Contest, one_kept_below_its_guarantee_needs_turns_when_it_is_a_quantum_behind) {
  // 70 % is left, it is guaranteed 80: two milliseconds lost in each window.
  EXPECT_EQ(windows_until_turns({member(0.8, 1, 1), member(0.2, 0.6, 0.3)}), 3);
  EXPECT_EQ(windows_until_turns({member(0.6, 1, 1), member(0.4, 0.6, 0.3)}), 0);
  // The driver serves both alike, however long the other's work took.
  EXPECT_EQ(windows_until_turns({member(0.5, 1, 1), member(0.5, 0.8, 0.8)}), 0);
}

TEST(Contest, what_is_lacking_is_forgotten_when_there_was_time_left_over) {
  const Contest contest({kQuantum});
  std::vector<Contest::Member> members = {member(0.8, 1, 1), member(0.2, 0.6, 0.3)};
  contest.needs_turns(members, kWindow);
  contest.needs_turns(members, kWindow);
  members[0].wanted_ns = kWindow / 2;
  contest.needs_turns(members, kWindow);
  EXPECT_EQ(members[0].behind_ns, 0);
}

TEST(Contest, turns_end_after_a_time_without_need_on_their_gpus_only) {
  Contest contest({kQuantum});
  contest.begin_turns(0b011, 1000);
  EXPECT_TRUE(contest.in_turns(0b010));
  EXPECT_FALSE(contest.in_turns(0b100));
  EXPECT_EQ(contest.turns_end_ns(0b011), 1000 + kHold);
  contest.renew_turns(0b011, 2000);
  contest.expire_turns(0b011, 1000 + kHold);
  EXPECT_TRUE(contest.in_turns(0b011));
  contest.expire_turns(0b011, 2000 + kHold);
  EXPECT_FALSE(contest.in_turns(0b011));
  EXPECT_EQ(contest.turns_end_ns(0b011), UINT64_MAX);
}

TEST(Contest, turns_that_come_back_soon_stay_longer) {
  Contest contest({kQuantum});
  uint64_t now = 0;
  for (const uint64_t hold : {1, 2, 4, 8, 16, 32, 32}) {
    contest.begin_turns(1, now);
    EXPECT_EQ(contest.turns_end_ns(1), now + hold * kHold);
    now = contest.turns_end_ns(1);
    contest.expire_turns(1, now);
    now += kWindow;
  }
  now += 100 * kHold;
  contest.begin_turns(1, now);
  EXPECT_EQ(contest.turns_end_ns(1), now + kHold);
}

}  // namespace
