// SPDX-License-Identifier: Apache-2.0
#include "broker/admission.h"

#include <gtest/gtest.h>

#include <list>

namespace {

using broker::Failure;
using broker::Status;
using broker::Terms;
using broker::Wish;

constexpr uint64_t kGiB = 1ull << 30;

class AdmissionTest : public testing::Test {
 protected:
  AdmissionTest() {
    for (int i = 0; i < 3; ++i) {
      broker::NodeGpu gpu;
      gpu.index = i;
      gpu.uuid[15] = static_cast<uint8_t>(i + 1);
      gpu.uuid_text = "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(i + 1);
      gpu.device_bytes = 80 * kGiB;
      gpus_.push_back(gpu);
    }
  }

  Status admit(const Wish& wish, Terms* terms) {
    broker::Admission admission(gpus_, context_bytes_);
    for (const auto& [slice, there] : promised_) admission.promise(slice, there);
    return admission.admit(wish, terms);
  }

  // Admits and keeps.
  void keep(const Wish& wish) {
    Terms terms;
    const Status status = admit(wish, &terms);
    ASSERT_TRUE(status.ok()) << status.text;
    promised_.emplace_back("slice-" + std::to_string(promised_.size()), terms);
  }

  static Wish on(std::vector<std::string> gpus, uint64_t bytes, uint32_t compute) {
    Wish wish;
    for (std::string& gpu : gpus) {
      wish.gpus.push_back({std::move(gpu), broker::MemoryAmount{.bytes = bytes, .percent = 0}});
    }
    wish.compute_percent = compute;
    return wish;
  }

  std::vector<broker::NodeGpu> gpus_;
  std::vector<uint64_t> context_bytes_ = std::vector<uint64_t>(3, 512ull << 20);
  std::list<std::pair<std::string, Terms>> promised_;
  Terms terms_;
};

TEST_F(AdmissionTest, the_reserve_is_one_percent_or_256_mib) {
  EXPECT_EQ(broker::node_reserve_bytes(80 * kGiB), 80 * kGiB / 100);
  EXPECT_EQ(broker::node_reserve_bytes(16 * kGiB), 256ull << 20);
}

TEST_F(AdmissionTest, percentages_of_memory_fill_a_gpu_exactly) {
  for (int i = 0; i < 4; ++i) {
    Wish wish;
    wish.gpus.push_back({"0", broker::MemoryAmount{.bytes = 0, .percent = 25}});
    keep(wish);
  }
  EXPECT_EQ(admit(on({"0"}, kGiB, 1), &terms_).failure, Failure::kFull);
}

TEST_F(AdmissionTest, memory_past_what_is_free_is_refused_with_what_is_free) {
  keep(on({"0"}, 60 * kGiB, 50));
  const Status status = admit(on({"0"}, 20 * kGiB, 50), &terms_);
  EXPECT_EQ(status.failure, Failure::kFull);
  EXPECT_NE(status.text.find("GPU 0 has 19.2 GiB and 50 % of compute free"), std::string::npos)
      << status.text;
}

TEST_F(AdmissionTest, compute_past_100_is_refused) {
  keep(on({"1"}, 10 * kGiB, 75));
  EXPECT_TRUE(admit(on({"1"}, 10 * kGiB, 25), &terms_).ok());
  EXPECT_EQ(admit(on({"1"}, 10 * kGiB, 26), &terms_).failure, Failure::kFull);
}

TEST_F(AdmissionTest, refused_compute_says_who_holds_what) {
  keep(on({"0"}, 1 * kGiB, 20));
  keep(on({"1"}, 1 * kGiB, 90));
  keep(on({"0"}, 1 * kGiB, 70));
  EXPECT_TRUE(admit(on({"0"}, kGiB, 11), &terms_)
                  .text.ends_with("10 % of compute free; guaranteed are 70 % to slice-2, 20 % to slice-0"));
  // A refusal of memory is not about compute.
  EXPECT_EQ(admit(on({"0"}, 80 * kGiB, 1), &terms_).text.find("guaranteed"), std::string::npos);
  promised_.clear();
  for (int i = 0; i < 10; ++i) keep(on({"2"}, kGiB, 10));
  EXPECT_TRUE(admit(on({"2"}, kGiB, 1), &terms_).text.ends_with("10 % to slice-7 and less to 2 more"));
}

TEST_F(AdmissionTest, memory_below_a_context_is_refused) {
  EXPECT_EQ(admit(on({"0"}, 100ull << 20, 10), &terms_).failure, Failure::kInvalid);
}

TEST_F(AdmissionTest, slices_of_several_gpus_are_admitted_as_gangs) {
  keep(on({"0", "1"}, 10 * kGiB, 50));
  keep(on({"1", "2"}, 10 * kGiB, 50));
  // Each GPU would add up to 100, and yet only one of the three could run at a time.
  const Status status = admit(on({"2", "0"}, 10 * kGiB, 50), &terms_);
  EXPECT_EQ(status.failure, Failure::kFull);
  EXPECT_NE(status.text.find("150 %"), std::string::npos) << status.text;
  promised_.clear();
  for (const auto& gpus : {std::vector<std::string>{"0", "1"}, {"1", "2"}, {"2", "0"}})
    keep(on(gpus, 10 * kGiB, 33));
}

TEST_F(AdmissionTest, a_single_gpu_slice_may_not_break_a_gang) {
  keep(on({"0", "1"}, 10 * kGiB, 50));
  keep(on({"0"}, 10 * kGiB, 50));
  EXPECT_EQ(admit(on({"1"}, 10 * kGiB, 1), &terms_).failure, Failure::kFull);
  EXPECT_TRUE(admit(on({"2"}, 10 * kGiB, 100), &terms_).ok());
}

TEST_F(AdmissionTest, gpus_are_found_by_index_and_uuid) {
  ASSERT_TRUE(admit(on({"GPU-00000000-0000-0000-0000-000000000002"}, kGiB, 1), &terms_).ok());
  EXPECT_EQ(terms_.gpus[0].gpu, 1);
  EXPECT_EQ(admit(on({"7"}, kGiB, 1), &terms_).failure, Failure::kNotFound);
  EXPECT_EQ(admit(on({"x"}, kGiB, 1), &terms_).failure, Failure::kNotFound);
  EXPECT_EQ(admit(on({"1", "1"}, kGiB, 1), &terms_).failure, Failure::kInvalid);
}

TEST_F(AdmissionTest, without_a_gpu_the_fullest_that_has_room_is_taken) {
  keep(on({"1"}, 40 * kGiB, 10));
  ASSERT_TRUE(admit(on({""}, 10 * kGiB, 10), &terms_).ok());
  EXPECT_EQ(terms_.gpus[0].gpu, 1);
  ASSERT_TRUE(admit(on({""}, 60 * kGiB, 10), &terms_).ok());
  EXPECT_NE(terms_.gpus[0].gpu, 1);
}

TEST_F(AdmissionTest, what_is_not_given_follows_what_is) {
  Wish wish;
  wish.gpus.push_back({"0", broker::MemoryAmount{.bytes = 0, .percent = 30}});
  ASSERT_TRUE(admit(wish, &terms_).ok());
  EXPECT_EQ(terms_.compute_percent, 30u);

  wish = {};
  wish.compute_percent = 50;
  ASSERT_TRUE(admit(wish, &terms_).ok());
  EXPECT_EQ(terms_.gpus[0].quota_bytes, (80 * kGiB - 80 * kGiB / 100) / 2);

  keep(on({"0"}, 20 * kGiB, 60));
  wish = {};
  wish.gpus.push_back({"0", std::nullopt});
  ASSERT_TRUE(admit(wish, &terms_).ok());
  EXPECT_EQ(terms_.compute_percent, 40u);
  EXPECT_EQ(terms_.gpus[0].quota_bytes, 80 * kGiB - 80 * kGiB / 100 - 20 * kGiB);
  EXPECT_EQ(terms_.compute_limit_percent, 100u);
}

TEST_F(AdmissionTest, limits_out_of_range_are_refused) {
  Wish wish = on({"0"}, kGiB, 50);
  wish.compute_limit_percent = 40;
  EXPECT_EQ(admit(wish, &terms_).failure, Failure::kInvalid);
  wish.compute_limit_percent = 101;
  EXPECT_EQ(admit(wish, &terms_).failure, Failure::kInvalid);
  EXPECT_EQ(admit(on({"0"}, kGiB, 101), &terms_).failure, Failure::kInvalid);
}

}  // namespace
