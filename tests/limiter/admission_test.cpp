// SPDX-License-Identifier: Apache-2.0
#include "limiter/admission.h"

#include <gtest/gtest.h>

namespace limiter {
namespace {

constexpr uint64_t kUs = 1'000, kMs = 1'000'000;
constexpr uint64_t kNow = 1'000 * kMs;

GateView turn(uint64_t left_ns, uint64_t run_ahead_ns = 2 * kMs) {
  return {.mode = shm::kTurn, .turn = 7, .deadline_ns = kNow + left_ns, .run_ahead_ns = run_ahead_ns};
}

Backlog backlog(uint32_t kernels, uint64_t each_ns) {
  return {.estimate_ns = kernels * each_ns, .kernels = kernels, .oldest_ns = each_ns, .progress_ns = kNow};
}

TEST(AdmissionTest, open_gate_admits_and_parked_or_blocked_or_unknown_parks) {
  EXPECT_EQ(admit({.mode = shm::kOpen}, backlog(9'999, kMs), kMs, true, kNow), Admission::kAdmit);
  for (uint32_t mode : {uint32_t{shm::kParked}, uint32_t{shm::kBlocked}, 77u})
    EXPECT_EQ(admit({.mode = mode}, {}, 1, false, kNow), Admission::kPark);
}

TEST(AdmissionTest, one_kernel_is_always_admitted_before_the_deadline) {
  EXPECT_EQ(admit(turn(1), {}, 3'600'000 * kMs, false, kNow), Admission::kAdmit);
  EXPECT_EQ(admit(turn(1, 0), {}, 3'600'000 * kMs, false, kNow), Admission::kAdmit);
}

TEST(AdmissionTest, two_kernels_may_be_under_way_however_long_the_second_is) {
  EXPECT_EQ(admit(turn(5 * kMs), backlog(1, 4 * kMs), 20 * kMs, false, kNow), Admission::kAdmit);
  EXPECT_EQ(admit(turn(5 * kMs), backlog(2, 2 * kMs), 20 * kMs, false, kNow), Admission::kRunAheadFull);
}

TEST(AdmissionTest, run_ahead_bounds_what_is_under_way) {
  EXPECT_EQ(admit(turn(50 * kMs), backlog(39, 50 * kUs), 50 * kUs, false, kNow), Admission::kAdmit);
  EXPECT_EQ(admit(turn(50 * kMs), backlog(40, 50 * kUs), 50 * kUs, false, kNow), Admission::kRunAheadFull);
}

TEST(AdmissionTest, closing_when_what_is_under_way_lasts_until_the_deadline) {
  EXPECT_EQ(admit(turn(kMs), backlog(10, 50 * kUs), 50 * kUs, false, kNow), Admission::kAdmit);
  EXPECT_EQ(admit(turn(kMs / 2), backlog(10, 50 * kUs), 50 * kUs, false, kNow), Admission::kClosing);
  EXPECT_EQ(admit(turn(0), {}, 50 * kUs, false, kNow), Admission::kClosing);
}

TEST(AdmissionTest, closed_turn_stays_closed) {
  EXPECT_EQ(admit(turn(5 * kMs), {}, 1, true, kNow), Admission::kClosing);
}

TEST(AdmissionTest, without_a_deadline_only_run_ahead_holds_back) {
  GateView view = turn(0);
  view.deadline_ns = shm::kNoDeadline;
  EXPECT_EQ(admit(view, backlog(10, 50 * kUs), 50 * kUs, false, kNow), Admission::kAdmit);
  EXPECT_EQ(admit(view, backlog(100, 50 * kUs), 50 * kUs, false, kNow), Admission::kRunAheadFull);
}

TEST(AdmissionTest, time_since_the_last_end_counts_as_work_done_up_to_the_oldest_part) {
  Backlog batches{.estimate_ns = 5 * kMs, .kernels = 100, .oldest_ns = kMs, .progress_ns = kNow};
  EXPECT_EQ(remaining_ns(batches, kNow), 5 * kMs);
  EXPECT_EQ(remaining_ns(batches, kNow + kMs / 2), 4 * kMs + kMs / 2);
  EXPECT_EQ(remaining_ns(batches, kNow + 30 * kMs), 4 * kMs);
  EXPECT_EQ(remaining_ns(batches, kNow - kMs), 5 * kMs);
}

TEST(AdmissionTest, overdue_backlog_admits_nothing_more) {
  Backlog small = backlog(5, 10 * kUs);
  EXPECT_EQ(admit(turn(50 * kMs), small, 10 * kUs, false, kNow + kMs), Admission::kAdmit);
  EXPECT_EQ(admit(turn(50 * kMs), small, 10 * kUs, false, kNow + 2 * kMs), Admission::kRunAheadFull);
}

TEST(ReadmissionTest, lets_one_launch_through_for_a_stall) {
  Readmission readmission;
  Backlog stuck = backlog(3, 10 * kUs);
  EXPECT_FALSE(readmission.take(stuck, 1, kNow + kMs - 1));
  EXPECT_TRUE(readmission.take(stuck, 1, kNow + kMs));
  EXPECT_FALSE(readmission.take(stuck, 1, kNow + kMs));
  EXPECT_EQ(readmission.next_ns(stuck, 1), kNow + 2 * kMs);
  // What was not taken in time is not made up for.
  EXPECT_TRUE(readmission.take(stuck, 1, kNow + 3 * kMs));
  EXPECT_FALSE(readmission.take(stuck, 1, kNow + 4 * kMs));
}

TEST(ReadmissionTest, waits_longer_while_it_does_not_help) {
  Readmission readmission;
  Backlog stuck = backlog(3, 10 * kUs);
  uint64_t now_ns = kNow;
  for (uint64_t wait_ns : {1 * kMs, 1 * kMs, 2 * kMs, 4 * kMs, 8 * kMs, 16 * kMs, 16 * kMs}) {
    EXPECT_EQ(readmission.next_ns(stuck, 1), now_ns + wait_ns);
    now_ns += wait_ns;
    EXPECT_TRUE(readmission.take(stuck, 1, now_ns));
  }
  // An end long after is no help, one soon after is.
  stuck.progress_ns = now_ns += 5 * kMs;
  EXPECT_TRUE(readmission.take(stuck, 1, now_ns += 16 * kMs));
  EXPECT_EQ(readmission.next_ns(stuck, 1), now_ns + 16 * kMs);
  stuck.progress_ns = now_ns += kMs / 2;
  EXPECT_TRUE(readmission.take(stuck, 1, now_ns += 16 * kMs));
  EXPECT_EQ(readmission.next_ns(stuck, 1), now_ns + kMs);
}

TEST(ReadmissionTest, begins_anew_when_it_was_not_needed_for_long) {
  Readmission readmission;
  Backlog stuck = backlog(3, 10 * kUs);
  uint64_t now_ns = kNow;
  for (int i = 0; i < 10; ++i) {
    now_ns = readmission.next_ns(stuck, 1);
    EXPECT_TRUE(readmission.take(stuck, 1, now_ns));
  }
  now_ns += 1000 * kMs;
  EXPECT_TRUE(readmission.take(stuck, 1, now_ns));
  EXPECT_EQ(readmission.next_ns(stuck, 1), now_ns + kMs);
}

TEST(ReadmissionTest, progress_starts_it_anew) {
  Readmission readmission;
  Backlog stuck = backlog(3, 10 * kUs);
  EXPECT_TRUE(readmission.take(stuck, 1, kNow + kMs));
  stuck.progress_ns = kNow + 10 * kMs;
  EXPECT_EQ(readmission.next_ns(stuck, 1), kNow + 11 * kMs);
  EXPECT_FALSE(readmission.take(stuck, 1, kNow + 10 * kMs));
  EXPECT_TRUE(readmission.take(stuck, 1, kNow + 11 * kMs));
}

TEST(ReadmissionTest, long_kernel_is_given_twice_its_time) {
  Readmission readmission;
  Backlog one = backlog(1, 20 * kMs);
  EXPECT_FALSE(readmission.take(one, 1, kNow + 39 * kMs));
  EXPECT_TRUE(readmission.take(one, 1, kNow + 40 * kMs));
}

TEST(ReadmissionTest, without_a_turn_it_is_given_the_time_beside_seven_others) {
  Readmission readmission;
  Backlog one = backlog(1, 20 * kMs);
  EXPECT_FALSE(readmission.take(one, kParkedPatience, kNow + 8 * 20 * kMs - 1));
  EXPECT_TRUE(readmission.take(one, kParkedPatience, kNow + 8 * 20 * kMs));
}

}  // namespace
}  // namespace limiter
