// SPDX-License-Identifier: Apache-2.0
#include "broker/slice_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace broker {
namespace {

// Whether there is something that can't be a slice any more, whoever looks: left half-made, or damaged. One
// of another version is one.
bool is_no_slice(const std::string& directory) {
  if (access(directory.c_str(), F_OK) != 0) return false;
  const shm::Limits* limits = nullptr;
  const shm::State* state = nullptr;
  shm::AttachResult result = shm::attach_limits(directory.c_str(), &limits);
  if (result == shm::AttachResult::kReady) {
    shm::detach(limits);
    result = shm::attach_state_read_only(directory.c_str(), &state);
    if (result == shm::AttachResult::kReady) shm::detach(state);
  }
  switch (result) {
    case shm::AttachResult::kNotThere:
    case shm::AttachResult::kNotReady:
    case shm::AttachResult::kNotASlice:
    case shm::AttachResult::kTooShort:
      return true;
    default:
      return false;
  }
}

}  // namespace

SliceFiles::SliceFiles(std::string directory, shm::Limits* limits, shm::State* state)
    : directory_(std::move(directory)),
      limits_(limits),
      state_(state),
      limits_guard_(limits, sizeof *limits),
      state_guard_(state, sizeof *state) {}

SliceFiles::~SliceFiles() {
  shm::detach(limits_);
  shm::detach(state_);
}

Status SliceFiles::create(const std::string& directory, const shm::SliceTerms& terms,
                          std::unique_ptr<SliceFiles>* files) {
  if (is_no_slice(directory)) remove_slice_directory(directory);
  if (mkdir(directory.c_str(), 0755) != 0) {
    const Failure failure = errno == EEXIST ? Failure::kExists : Failure::kSystem;
    return fail(failure, "cannot make " + directory + ": " + strerror(errno));
  }
  chmod(directory.c_str(), 0755);

  shm::Limits* limits = nullptr;
  shm::State* state = nullptr;
  if (!shm::create(directory.c_str(), terms, &limits, &state)) {
    const std::string reason = strerror(errno);
    rmdir(directory.c_str());
    return fail(Failure::kSystem, "cannot make the files of slice " + directory + ": " + reason);
  }
  files->reset(new SliceFiles(directory, limits, state));
  return {};
}

Status SliceFiles::open(const std::string& directory, std::unique_ptr<SliceFiles>* files) {
  shm::Limits* limits = nullptr;
  shm::AttachResult result = shm::attach_limits_writable(directory.c_str(), &limits);
  if (result != shm::AttachResult::kReady) {
    return fail(Failure::kSystem, directory + "/limits: " + shm::describe(result));
  }
  shm::State* state = nullptr;
  result = shm::attach_state(directory.c_str(), &state);
  if (result != shm::AttachResult::kReady) {
    shm::detach(limits);
    return fail(Failure::kSystem, directory + "/state: " + shm::describe(result));
  }
  files->reset(new SliceFiles(directory, limits, state));
  return {};
}

bool SliceFiles::damaged() const {
  if (limits_guard_.damaged() || state_guard_.damaged()) return true;
  // A file that was cut and grown again reads as zeros without a fault.
  const auto other_format = [](const auto& header, uint64_t magic) {
    return header.magic != magic || header.version.load(std::memory_order_relaxed) != shm::kVersion;
  };
  return other_format(limits_->header, shm::kLimitsMagic) || other_format(state_->header, shm::kStateMagic);
}

void remove_slice_directory(const std::string& directory) {
  std::error_code left;  // whoever makes it anew is told
  std::filesystem::remove_all(directory, left);
}

}  // namespace broker
