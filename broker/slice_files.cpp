// SPDX-License-Identifier: Apache-2.0
#include "broker/slice_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace broker {

SliceFiles::SliceFiles(std::string directory, shm::Limits* limits, shm::State* state)
    : directory_(std::move(directory)), limits_(limits), state_(state), guard_(state, sizeof *state) {}

SliceFiles::~SliceFiles() {
  shm::detach(limits_);
  shm::detach(state_);
}

Status SliceFiles::create(const std::string& directory, const shm::SliceTerms& terms,
                          std::unique_ptr<SliceFiles>* files) {
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
  if (guard_.damaged()) return true;
  // A file that was cut and grown again reads as zeros without a fault.
  const shm::StateHeader& header = state_->header;
  return header.magic != shm::kStateMagic || header.version.load(std::memory_order_relaxed) != shm::kVersion;
}

void remove_slice_directory(const std::string& directory) {
  for (const char* file : {"/attach", "/limits", "/state"}) unlink((directory + file).c_str());
  rmdir(directory.c_str());
}

}  // namespace broker
