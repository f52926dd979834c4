// SPDX-License-Identifier: Apache-2.0
//
// The commands of cuslicectl. Each returns its exit status: 0, 1 (failed), 2 (used wrongly); `run` that of
// the command it ran.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "broker/run_directory.h"
#include "broker/sizes.h"
#include "shm/layout.h"

namespace ctl {

// A slice as it was asked for on the command line.
struct SliceOptions {
  std::optional<broker::MemoryAmount> memory;
  std::optional<uint32_t> compute_percent;
  std::optional<uint32_t> compute_limit_percent;
  std::optional<bool> priority;
  std::optional<shm::BypassPolicy> bypass;
};

struct RunOptions {
  SliceOptions slice;
  std::vector<std::string> gpus;
  std::string name;     // empty: after the command
  std::string lib_dir;  // empty: beside this program
  std::vector<std::string> command;
};

enum class TopOrder : unsigned char { kName, kMemory, kReceived, kWaited };

struct TopOptions {
  bool once = false;
  bool time = false;  // columns of GPU time, not of memory
  TopOrder sort = TopOrder::kName;
  bool json = false;  // an object per interval, each on a line of its own
  double interval_seconds = 1;
};

struct AuditOptions {
  std::string driver;  // its file; empty: the one that the loader finds
  bool json = false;
  bool strict = false;
};

int run(const broker::RunDirectory& directory, const RunOptions& options);
int list(const broker::RunDirectory& directory, bool json);
int top(const broker::RunDirectory& directory, const TopOptions& options);
int set(const broker::RunDirectory& directory, const std::string& slice, const SliceOptions& options);
int explain(const broker::RunDirectory& directory, const std::string& slice, bool json);
int doctor(const broker::RunDirectory& directory, const std::string& lib_dir, bool json);
int audit(const broker::RunDirectory& directory, const AuditOptions& options);

// What `doctor` runs in a slice: tries every way into the driver, takes memory to the refusal, launches work;
// prints what it saw as JSON. `driver_path` is the driver's library file; may be empty.
int probe(const std::string& driver_path);

// "cuslicectl: error: ..." on stderr; returns 1, or 2 for a value that can never be right.
int report(const broker::Status& status);

// The folder that this program is in.
std::string program_directory();

}  // namespace ctl
