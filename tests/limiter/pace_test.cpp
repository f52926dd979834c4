// SPDX-License-Identifier: Apache-2.0
#include "limiter/pace.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace limiter {
namespace {

TEST(PaceTest, first_kernel_starts_at_once_the_second_after_its_share) {
  std::atomic<uint64_t> next{0};
  EXPECT_EQ(pace(next, 1'000'000, 25, 5'000'000'000), 5'000'000'000u);
  EXPECT_EQ(pace(next, 1'000'000, 25, 5'000'100'000), 5'004'000'000u);
}

TEST(PaceTest, long_run_receives_exactly_the_share) {
  for (uint32_t percent : {1u, 10u, 25u, 60u, 100u}) {
    std::atomic<uint64_t> next{0};
    uint64_t now = 1'000'000'000, begin = now, busy = 0;
    while (busy < 1'000'000'000) {
      now = pace(next, 500'000, percent, now);
      now += 500'000;
      busy += 500'000;
    }
    EXPECT_NEAR(100.0 * static_cast<double>(busy) / static_cast<double>(next - begin), percent, 0.1);
  }
}

TEST(PaceTest, a_launch_that_comes_late_costs_no_share) {
  for (uint64_t late : {100'000u, 1'000'000u, 4'000'000u}) {
    std::atomic<uint64_t> next{0};
    const uint64_t begin = 1'000'000'000;
    uint64_t now = begin, busy = 0;
    for (; busy < 1'000'000'000; busy += 500'000) {
      now = std::max(now, pace(next, 500'000, 10, now) + late) + 500'000;
    }
    EXPECT_NEAR(100.0 * static_cast<double>(busy) / static_cast<double>(now - begin), 10, 0.1) << late;
  }
}

TEST(PaceTest, no_more_idle_time_is_saved_up_than_may_be_late) {
  std::atomic<uint64_t> next{0};
  pace(next, 1'000'000, 50, 1'000'000'000);
  EXPECT_EQ(pace(next, 1'000'000, 50, 9'000'000'000), 9'000'000'000 - kPaceLateNs);
  EXPECT_EQ(pace(next, 1'000'000, 50, 9'000'000'000), 9'002'000'000 - kPaceLateNs);
}

TEST(PaceTest, a_word_from_nowhere_is_not_waited_for) {
  std::atomic<uint64_t> next{~0ull};
  EXPECT_EQ(pace(next, 1'000'000, 25, 5'000'000'000), 5'000'000'000u);
  EXPECT_EQ(next, 5'004'000'000u);
}

TEST(PaceTest, shares_out_of_range_are_clamped) {
  std::atomic<uint64_t> next{0};
  pace(next, 1'000, 0, 0);
  EXPECT_EQ(next, 100'000u);
  next = 0;
  pace(next, 1'000, 4'000, 0);
  EXPECT_EQ(next, 1'000u);
}

TEST(PaceTest, concurrent_processes_share_one_bucket) {
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&next] {
      for (int i = 0; i < 1'000; ++i) pace(next, 1'000, 50, 1'000'000'000);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(next, 1'000'000'000u + 4'000u * 2'000u);
}

}  // namespace
}  // namespace limiter
