// SPDX-License-Identifier: Apache-2.0
#include "limiter/kernel_estimates.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace limiter {
namespace {

class KernelEstimatesTest : public testing::Test {
 protected:
  void measure(uint64_t key, uint64_t ns, int times = 1) {
    for (int i = 0; i < times; ++i) {
      estimates_->sampling(key);
      estimates_->sample(key, ns);
    }
  }
  uint64_t ns(uint64_t key) { return estimates_->expect(key).ns; }

  std::unique_ptr<KernelEstimates> estimates_ = std::make_unique<KernelEstimates>();
};

TEST_F(KernelEstimatesTest, unknown_launch_is_taken_for_long_and_wants_a_sample) {
  auto estimate = estimates_->expect(launch_key(1, 2, 3));
  EXPECT_EQ(estimate.ns, KernelEstimates::kUnknownNs);
  EXPECT_TRUE(estimate.wants_sample);
}

TEST_F(KernelEstimatesTest, shape_is_part_of_the_key) {
  EXPECT_NE(launch_key(0x7f0000001000, 1, 256), launch_key(0x7f0000001000, 256, 1));
  EXPECT_NE(launch_key(0x7f0000001000, 1, 256), launch_key(0x7f0000001000, 1, 257));
  EXPECT_NE(launch_key(0), 0u);
}

TEST_F(KernelEstimatesTest, first_samples_are_averaged) {
  measure(7, 10'000);
  EXPECT_EQ(ns(7), 10'000u);
  measure(7, 14'000);
  EXPECT_EQ(ns(7), 12'000u);
}

TEST_F(KernelEstimatesTest, wants_no_sample_after_three_until_64_launches_later) {
  measure(7, 10'000, 3);
  for (int i = 0; i < 63; ++i) EXPECT_FALSE(estimates_->expect(7).wants_sample) << i;
  EXPECT_TRUE(estimates_->expect(7).wants_sample);
  estimates_->sampling(7);
  EXPECT_FALSE(estimates_->expect(7).wants_sample);
}

TEST_F(KernelEstimatesTest, one_outlier_moves_a_settled_mean_by_half_at_most) {
  measure(7, 10'000, 20);
  measure(7, 110'000);
  EXPECT_EQ(ns(7), 60'000u);
  measure(7, 10'000, 8);
  EXPECT_NEAR(ns(7), 10'000, 5'000);
}

TEST_F(KernelEstimatesTest, settles_within_ten_samples_after_a_change_of_work) {
  measure(7, 50'000, 50);
  measure(7, 20'000'000, 10);
  EXPECT_NEAR(ns(7), 20'000'000, 4'000'000);
}

TEST_F(KernelEstimatesTest, absurd_sample_is_bounded) {
  measure(7, ~0ull);
  EXPECT_LE(ns(7), 3600'000'000'000u);
}

TEST_F(KernelEstimatesTest, more_keys_than_entries_forgets_some_and_keeps_answering) {
  for (uint64_t i = 0; i < 20'000; ++i) measure(launch_key(i), 5'000);
  int known = 0;
  for (uint64_t i = 0; i < 20'000; ++i) {
    uint64_t estimate = ns(launch_key(i));
    ASSERT_TRUE(estimate == 5'000 || estimate == KernelEstimates::kUnknownNs) << estimate;
    known += estimate == 5'000;
  }
  EXPECT_GT(known, 0);
}

TEST_F(KernelEstimatesTest, threads_share_the_table) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (uint64_t i = 1; i < 5'000; ++i) {
        uint64_t key = launch_key(i % 300);
        if (estimates_->expect(key).wants_sample) measure(key, 1'000 * (i % 300 + 1));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (uint64_t i = 0; i < 300; ++i) EXPECT_EQ(ns(launch_key(i)), 1'000 * (i + 1)) << i;
}

}  // namespace
// Half of the kernels were interrupted by another context's 2 ms.
TEST_F(KernelEstimatesTest, what_other_contexts_ran_meanwhile_is_not_taken_for_the_kernel) {
  const uint64_t key = launch_key(1);
  std::mt19937 random(7);
  uint64_t sum_ns = 0;
  for (int i = 0; i < 1000; ++i) {
    estimates_->sample_beside_others(key, random() % 2 ? 100'000 : 2'200'000);
    sum_ns += ns(key);
  }
  EXPECT_LE(sum_ns / 1000, 300'000u);
}

TEST_F(KernelEstimatesTest, other_work_is_learned_beside_others_too) {
  const uint64_t key = launch_key(1);
  for (int i = 0; i < 20; ++i) estimates_->sample_beside_others(key, 100'000);
  for (int i = 0; i < 40; ++i) estimates_->sample_beside_others(key, 3'000'000);
  EXPECT_NEAR(static_cast<double>(ns(key)), 3e6, 3e5);
  estimates_->sample_beside_others(key, 100'000);
  EXPECT_EQ(ns(key), 100'000u);
}

TEST_F(KernelEstimatesTest, unarbitrated_samples_only_lower) {
  const uint64_t key = launch_key(1);
  estimates_->sample_unarbitrated(key, 3'000'000);
  EXPECT_EQ(ns(key), 3'000'000u);
  for (int i = 0; i < 100; ++i) estimates_->sample_unarbitrated(key, i % 10 == 0 ? 100'000 : 2'200'000);
  EXPECT_LE(ns(key), 300'000u);
}

TEST_F(KernelEstimatesTest, forgotten_key_is_unknown_again) {
  const uint64_t key = launch_key(1);
  for (int i = 0; i < 10; ++i) measure(key, 10'000);
  estimates_->forget(key);
  EXPECT_EQ(ns(key), KernelEstimates::kUnknownNs);
  EXPECT_TRUE(estimates_->expect(key).wants_sample);
}

TEST_F(KernelEstimatesTest, doubted_keys_are_measured_at_their_next_launch) {
  for (uint64_t i = 0; i < 10; ++i) {
    for (int sample = 0; sample < 10; ++sample) measure(launch_key(i), 10'000);
  }
  ASSERT_FALSE(estimates_->expect(launch_key(1)).wants_sample);
  estimates_->doubt_all();
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(estimates_->expect(launch_key(i)).wants_sample) << i;
    EXPECT_EQ(ns(launch_key(i)), 10'000u) << i;
  }
}

}  // namespace limiter
