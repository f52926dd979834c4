// SPDX-License-Identifier: Apache-2.0
#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "shm/counters.h"

namespace {

using shm::AttachResult;

class Segment : public testing::Test {
 protected:
  Segment() {
    char name[] = "/tmp/cuslice-segment-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~Segment() override { std::filesystem::remove_all(directory_); }

  bool make(const char* id = "a-slice", int gpus = 2) {
    shm::GpuTerms terms[2] = {};
    terms[0].uuid[0] = 0xab;
    terms[0].quota_bytes = 10;
    terms[1].quota_bytes = 20;
    shm::Limits* limits = nullptr;
    shm::State* state = nullptr;
    if (!shm::create(directory_.c_str(), {id, terms, gpus, 25, 50, 1}, &limits, &state)) return false;
    shm::detach(limits);
    shm::detach(state);
    return true;
  }

  AttachResult attach_limits() {
    const shm::Limits* limits = nullptr;
    const AttachResult result = shm::attach_limits(directory_.c_str(), &limits);
    if (limits != nullptr) shm::detach(limits);
    return result;
  }

  AttachResult attach_state() {
    shm::State* state = nullptr;
    const AttachResult result = shm::attach_state(directory_.c_str(), &state);
    if (state != nullptr) shm::detach(state);
    return result;
  }

  std::string path(const char* file) const { return directory_ + "/" + file; }

  template <typename T>
  void overwrite(const char* file, size_t offset, T value) {
    const int descriptor = open(path(file).c_str(), O_WRONLY);
    ASSERT_GE(descriptor, 0);
    ASSERT_EQ(pwrite(descriptor, &value, sizeof value, static_cast<off_t>(offset)),
              static_cast<ssize_t>(sizeof value));
    close(descriptor);
  }

  std::string directory_;
};

TEST_F(Segment, what_is_made_can_be_attached) {
  ASSERT_TRUE(make());
  const shm::Limits* limits = nullptr;
  shm::State* state = nullptr;
  ASSERT_EQ(shm::attach_limits(directory_.c_str(), &limits), AttachResult::kReady);
  ASSERT_EQ(shm::attach_state(directory_.c_str(), &state), AttachResult::kReady);
  EXPECT_STREQ(limits->header.slice_id, "a-slice");
  EXPECT_EQ(limits->header.gpu_count, 2u);
  EXPECT_EQ(limits->gpus[0].uuid[0], 0xab);
  EXPECT_EQ(limits->gpus[1].quota_bytes.load(), 20u);
  EXPECT_EQ(limits->share.compute_percent.load(), 25u);
  EXPECT_EQ(limits->share.compute_limit_percent.load(), 50u);
  EXPECT_EQ(limits->gate.gate.load(), shm::kGateShut);
  shm::detach(limits);
  shm::detach(state);
}

TEST_F(Segment, modes_do_not_depend_on_the_umask) {
  const mode_t before = umask(0077);
  ASSERT_TRUE(make());
  umask(before);
  struct stat status;
  ASSERT_EQ(stat(path("limits").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
  ASSERT_EQ(stat(path("state").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666u);
}

TEST_F(Segment, bad_terms_are_refused_and_leave_no_file) {
  EXPECT_FALSE(make(""));
  EXPECT_EQ(errno, EINVAL);
  EXPECT_FALSE(make(std::string(64, 'x').c_str()));
  EXPECT_FALSE(make("no-gpu", 0));
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(Segment, a_second_create_fails_and_keeps_the_first) {
  ASSERT_TRUE(make("first"));
  EXPECT_FALSE(make("second"));
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(attach_limits(), AttachResult::kReady);
  EXPECT_EQ(attach_state(), AttachResult::kReady);
}

TEST_F(Segment, no_directory_is_not_there) {
  std::filesystem::remove_all(directory_);
  EXPECT_EQ(attach_limits(), AttachResult::kNotThere);
}

TEST_F(Segment, another_version_is_not_attached) {
  ASSERT_TRUE(make());
  overwrite<uint32_t>("limits", offsetof(shm::LimitsHeader, version), shm::kVersion + 1);
  overwrite<uint32_t>("state", offsetof(shm::StateHeader, version), shm::kVersion + 1);
  EXPECT_EQ(attach_limits(), AttachResult::kWrongVersion);
  EXPECT_EQ(attach_state(), AttachResult::kWrongVersion);
}

TEST_F(Segment, a_version_of_another_length_is_told_as_a_version) {
  ASSERT_TRUE(make());
  overwrite<uint32_t>("limits", offsetof(shm::LimitsHeader, version), shm::kVersion + 1);
  overwrite<uint32_t>("state", offsetof(shm::StateHeader, version), shm::kVersion + 1);
  ASSERT_EQ(truncate(path("limits").c_str(), sizeof(shm::LimitsHeader)), 0);
  ASSERT_EQ(truncate(path("state").c_str(), 2 * sizeof(shm::State)), 0);
  EXPECT_EQ(attach_limits(), AttachResult::kWrongVersion);
  EXPECT_EQ(attach_state(), AttachResult::kWrongVersion);
}

TEST_F(Segment, version_zero_is_not_ready) {
  ASSERT_TRUE(make());
  overwrite<uint32_t>("limits", offsetof(shm::LimitsHeader, version), 0);
  EXPECT_EQ(attach_limits(), AttachResult::kNotReady);
}

TEST_F(Segment, truncated_files_are_too_short) {
  ASSERT_TRUE(make());
  ASSERT_EQ(truncate(path("state").c_str(), sizeof(shm::State) - 1), 0);
  EXPECT_EQ(attach_state(), AttachResult::kTooShort);
  ASSERT_EQ(truncate(path("state").c_str(), sizeof(shm::StateHeader) - 1), 0);
  EXPECT_EQ(attach_state(), AttachResult::kTooShort);
  ASSERT_EQ(truncate(path("state").c_str(), 0), 0);
  EXPECT_EQ(attach_state(), AttachResult::kNotReady);
}

TEST_F(Segment, contradictions_in_the_header_are_found) {
  ASSERT_TRUE(make());
  overwrite<uint32_t>("limits", offsetof(shm::LimitsHeader, gpu_count), shm::kMaxGpus + 1);
  EXPECT_EQ(attach_limits(), AttachResult::kNotASlice);
  overwrite<uint32_t>("limits", offsetof(shm::LimitsHeader, gpu_count), 0);
  EXPECT_EQ(attach_limits(), AttachResult::kNotASlice);
  overwrite<uint64_t>("state", offsetof(shm::StateHeader, length_bytes), 1);
  EXPECT_EQ(attach_state(), AttachResult::kNotASlice);
}

TEST_F(Segment, a_symbolic_link_or_a_pipe_is_not_followed) {
  ASSERT_TRUE(make());
  std::filesystem::rename(path("limits"), path("elsewhere"));
  std::filesystem::create_symlink("elsewhere", path("limits"));
  EXPECT_EQ(attach_limits(), AttachResult::kFailed);
  std::filesystem::remove(path("state"));
  ASSERT_EQ(mkfifo(path("state").c_str(), 0666), 0);
  EXPECT_EQ(attach_state(), AttachResult::kFailed);
}

TEST_F(Segment, random_bytes_are_never_ready) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; round++) {
    std::ofstream file(path("limits"), std::ios::binary | std::ios::trunc);
    std::string bytes(sizeof(shm::Limits), '\0');
    for (size_t i = 0; i < 4096; i++) bytes[i] = static_cast<char>(random());
    file << bytes;
    file.close();
    EXPECT_NE(attach_limits(), AttachResult::kReady);
  }
}

TEST(Counters, labels_are_in_the_order_of_their_numbers) {
  for (uint32_t i = 0; i < shm::kCounterCount; i++) EXPECT_EQ(shm::kCounterLabels[i].counter, i);
}

}  // namespace
