// SPDX-License-Identifier: Apache-2.0
#include "broker/rates.h"

#include <gtest/gtest.h>

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

uint32_t received(const broker::Rates& rates, int window) { return shm::rate(rates.received_word(), window); }

TEST(Rates, are_of_the_last_1_10_and_60_seconds) {
  broker::Rates rates;
  uint64_t sum_ns = 0;
  for (uint64_t second = 100; second <= 200; ++second) {
    rates.note(sum_ns, 2 * sum_ns, second * kSecond);
    // A quarter of the GPU, and half of it in the last five seconds.
    sum_ns += second >= 195 ? kSecond / 2 : kSecond / 4;
  }
  EXPECT_EQ(received(rates, 0), 5000u);
  EXPECT_EQ(received(rates, 1), 3750u);
  EXPECT_NEAR(received(rates, 2), 2708, 1);
  EXPECT_EQ(shm::rate(rates.wanted_word(), 0), 10'000u);
  EXPECT_EQ(shm::rate(rates.wanted_word(), 1), 7500u);
}

TEST(Rates, begin_with_the_first_note) {
  broker::Rates rates;
  EXPECT_TRUE(rates.due(5));
  rates.note(0, 0, 100 * kSecond);
  EXPECT_EQ(rates.received_word(), 0u);
  EXPECT_FALSE(rates.due(100 * kSecond + kSecond / 2));
  rates.note(kSecond, kSecond, 102 * kSecond);
  EXPECT_EQ(received(rates, 0), 5000u);
  EXPECT_EQ(received(rates, 2), 5000u);
}

TEST(Rates, a_pause_counts_as_time) {
  broker::Rates rates;
  rates.note(0, 0, 100 * kSecond);
  rates.note(kSecond, kSecond, 101 * kSecond);
  EXPECT_FALSE(rates.moved(kSecond));
  rates.note(kSecond, kSecond, 120 * kSecond);
  EXPECT_EQ(received(rates, 0), 0u);
  EXPECT_EQ(received(rates, 1), 0u);
  EXPECT_EQ(received(rates, 2), 500u);
}

}  // namespace
