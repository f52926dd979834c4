// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "broker/mapping_guard.h"
#include "broker/status.h"
#include "shm/segment.h"

namespace broker {

// A slice's directory and the mappings of its files, guarded against what a tenant may do to `state`.
// The files outlive this object: only remove_slice_directory() takes them away.
class SliceFiles {
 public:
  // Makes the directory. kExists if it is there.
  static Status create(const std::string& directory, const shm::SliceTerms& terms,
                       std::unique_ptr<SliceFiles>* files);
  // Those of a slice that another broker made.
  static Status open(const std::string& directory, std::unique_ptr<SliceFiles>* files);
  ~SliceFiles();

  const std::string& directory() const { return directory_; }
  shm::Limits& limits() const { return *limits_; }
  shm::State& state() const { return *state_; }

  // True from the moment that `state` was found cut or its header overwritten; never false again.
  bool damaged() const;

 private:
  SliceFiles(std::string directory, shm::Limits* limits, shm::State* state);

  const std::string directory_;
  shm::Limits* const limits_;
  shm::State* const state_;
  MappingGuard guard_;
};

void remove_slice_directory(const std::string& directory);

}  // namespace broker
