// SPDX-License-Identifier: Apache-2.0
#include "limiter/address_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

using limiter::AddressTable;

uint64_t address(uint64_t i) { return 0x7f0000000000 + i * 512; }

TEST(AddressTable, knows_what_it_was_told_and_nothing_else) {
  AddressTable table;
  uint64_t value = 0;
  EXPECT_FALSE(table.find(address(1), &value));
  EXPECT_FALSE(table.take(address(1), &value));
  EXPECT_TRUE(table.insert(address(1), 11));
  EXPECT_TRUE(table.insert(address(2), 22));
  EXPECT_TRUE(table.find(address(1), &value));
  EXPECT_EQ(value, 11u);
  EXPECT_TRUE(table.take(address(1), &value));
  EXPECT_EQ(value, 11u);
  EXPECT_FALSE(table.take(address(1), &value));
  EXPECT_TRUE(table.find(address(2), &value));
  EXPECT_EQ(value, 22u);
}

TEST(AddressTable, has_no_entry_for_null) {
  AddressTable table;
  uint64_t value;
  for (uint64_t i = 1; i < 100; i++) ASSERT_TRUE(table.insert(address(i), i));
  for (uint64_t i = 1; i < 50; i++) ASSERT_TRUE(table.take(address(i), &value));
  for (const uint64_t key : {0, 1}) {
    EXPECT_FALSE(table.find(key, &value));
    EXPECT_FALSE(table.take(key, &value));
  }
}

TEST(AddressTable, agrees_with_a_map_over_a_long_random_life) {
  AddressTable table;
  std::unordered_map<uint64_t, uint64_t> truth;
  std::mt19937_64 random(1);
  for (int step = 0; step < 400'000; step++) {
    const uint64_t key = address(random() % 60'000);
    uint64_t value = 0;
    if (truth.count(key) == 0) {
      EXPECT_FALSE(table.find(key, &value));
      ASSERT_TRUE(table.insert(key, step));
      truth[key] = static_cast<uint64_t>(step);
    } else {
      ASSERT_TRUE(table.take(key, &value));
      EXPECT_EQ(value, truth[key]);
      truth.erase(key);
    }
  }
  for (const auto& [key, expected] : truth) {
    uint64_t value;
    ASSERT_TRUE(table.find(key, &value));
    EXPECT_EQ(value, expected);
  }
}

TEST(AddressTable, costs_at_most_64_bytes_an_allocation_when_many_live) {
  AddressTable table;
  uint64_t count = 0;
  double worst = 0;
  for (; count < 200'000; count++) {
    ASSERT_TRUE(table.insert(address(count * 4096), count));
    if (count > 1'000)
      worst = std::max(worst, static_cast<double>(table.mapped_bytes()) / static_cast<double>(count));
  }
  // Right after it has grown; the pages of a new table are not there before they are used.
  EXPECT_LT(worst, 16 * (1 + 2) * 1.34);
  EXPECT_LT(static_cast<double>(table.mapped_bytes()) / static_cast<double>(count), 64);
}

TEST(AddressTable, takes_all_that_match) {
  AddressTable table;
  for (uint64_t i = 0; i < 5'000; i++) ASSERT_TRUE(table.insert(address(i), i % 3));
  int taken = 0;
  table.take_all([](uint64_t value) { return value == 1; }, [&](uint64_t) { taken++; });
  EXPECT_EQ(taken, 1'667);
  uint64_t value;
  for (uint64_t i = 0; i < 5'000; i++) EXPECT_EQ(table.find(address(i), &value), i % 3 != 1);
}

TEST(AddressTable, forgets) {
  AddressTable table;
  for (uint64_t i = 0; i < 3'000; i++) ASSERT_TRUE(table.insert(address(i), i));
  table.forget();
  uint64_t value;
  EXPECT_FALSE(table.find(address(1), &value));
  EXPECT_EQ(table.mapped_bytes(), 0u);
  EXPECT_TRUE(table.insert(address(1), 5));
}

// Each key belongs to one thread at a time, as addresses do; takers compete for keys that a third thread put
// in.
TEST(AddressTable, serves_threads_that_insert_and_take_at_once) {
  constexpr int kThreads = 8;
  constexpr uint64_t kKeys = 2'000;
  AddressTable table;
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int me = 0; me < kThreads; me++) {
    threads.emplace_back([&, me] {
      for (int round = 0; round < 20; round++) {
        for (uint64_t i = 0; i < kKeys; i++) {
          if (!table.insert(address(i * kThreads + me), i << 8 | me)) wrong++;
        }
        for (uint64_t i = 0; i < kKeys; i++) {
          uint64_t value = 0;
          if (!table.find(address(i * kThreads + me), &value) || value != (i << 8 | me)) wrong++;
          if (!table.take(address(i * kThreads + me), &value) || value != (i << 8 | me)) wrong++;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(AddressTable, gives_a_key_to_one_of_several_takers) {
  constexpr int kTakers = 4;
  AddressTable table;
  for (int round = 0; round < 300; round++) {
    ASSERT_TRUE(table.insert(address(round), round));
    std::atomic<int> got{0};
    std::vector<std::thread> takers;
    for (int i = 0; i < kTakers; i++) {
      takers.emplace_back([&] {
        uint64_t value;
        if (table.take(address(round), &value)) got++;
      });
    }
    for (std::thread& taker : takers) taker.join();
    ASSERT_EQ(got, 1);
  }
}

}  // namespace
