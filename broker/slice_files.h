// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "broker/mapping_guard.h"
#include "broker/status.h"
#include "shm/segment.h"

namespace broker {

// A slice's directory and the mappings of its files, guarded against their being cut: `state` by a tenant,
// and both by whoever may write into the run directory. The files outlive this object: only
// remove_slice_directory() takes them away.
class SliceFiles {
 public:
  // Makes the directory. kExists if a slice is there; what is left of one, damaged or half-made, is replaced.
  static Status create(const std::string& directory, const shm::SliceTerms& terms,
                       std::unique_ptr<SliceFiles>* files);
  // Those of a slice that another broker made.
  static Status open(const std::string& directory, std::unique_ptr<SliceFiles>* files);
  ~SliceFiles();

  const std::string& directory() const { return directory_; }
  shm::Limits& limits() const { return *limits_; }
  shm::State& state() const { return *state_; }

  // True from the moment that a file was found cut or its header overwritten; never false again.
  bool damaged() const;

 private:
  SliceFiles(std::string directory, shm::Limits* limits, shm::State* state);

  const std::string directory_;
  shm::Limits* const limits_;
  shm::State* const state_;
  MappingGuard limits_guard_;
  MappingGuard state_guard_;
};

// Whatever state its files are in.
void remove_slice_directory(const std::string& directory);

}  // namespace broker
