// SPDX-License-Identifier: Apache-2.0
//
// Where a broker keeps what it shares with others:
//
//   <run>/broker.lock          held (flock) by the one broker that serves this directory
//   <run>/broker.sock          the API
//   <run>/slices/<id>/         what the processes of a slice see
//   <run>/records/<id>         the broker's own record of a slice
#pragma once

#include <string>

#include "broker/status.h"
#include "broker/unique_fd.h"

namespace broker {

// CUSLICE_RUN_DIR; else /run/cuslice for root, $XDG_RUNTIME_DIR/cuslice for others. Empty: neither is set.
std::string default_run_directory();

// The absolute path of a run directory as it was given. kInvalid: it can be none, and the text says why.
Status resolve_run_directory(const std::string& given, std::string* path);

class RunDirectory {
 public:
  // `path`: from resolve_run_directory().
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string lock_file() const { return path_ + "/broker.lock"; }
  // Held by who starts a transient broker.
  std::string start_lock_file() const { return path_ + "/start.lock"; }
  std::string socket() const { return path_ + "/broker.sock"; }
  std::string log_file() const { return path_ + "/broker.log"; }
  std::string slices() const { return path_ + "/slices"; }
  std::string slice(const std::string& id) const { return slices() + "/" + id; }
  std::string records() const { return path_ + "/records"; }
  std::string record(const std::string& id) const { return records() + "/" + id; }

  // Makes the directories that are missing. Others may look into the slices, nobody else into the records.
  Status make() const;

 private:
  std::string path_;
};

// An exclusive flock on a file that its holders may remove. Returned locked, or not at all: without `wait`,
// kExists means that somebody else holds it.
Status lock_file(const std::string& path, bool wait, UniqueFd* lock);

}  // namespace broker
