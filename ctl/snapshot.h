// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "broker/run_directory.h"
#include "broker/status.h"
#include "shm/layout.h"

namespace ctl {

// A slice at one moment, copied out of its files. They are mapped read-only: it needs no broker, and works on
// slices whose processes or broker are dead.

struct GpuView {
  std::string uuid;
  uint64_t quota_bytes = 0;
  uint64_t held_bytes = 0;
  uint64_t overhead_bytes = 0;
  uint64_t orphaned_bytes = 0;    // of processes without a slot
  uint64_t unattached_bytes = 0;  // the part of it that living ones have, which never attached
  uint64_t used_bytes() const { return held_bytes + overhead_bytes + orphaned_bytes; }
  uint64_t free_bytes() const { return used_bytes() < quota_bytes ? quota_bytes - used_bytes() : 0; }
  // Above 0 after a quota was lowered below what is used: nothing new is given out until it is 0 again.
  uint64_t over_bytes() const { return used_bytes() > quota_bytes ? used_bytes() - quota_bytes : 0; }
};

// What a process has of a GPU.
struct MemoryView {
  uint64_t charged_bytes = 0;
  uint64_t held_bytes = 0;  // asked for by the program
  uint64_t pooled_bytes =
      0;  // of that, in pools: what they do not use goes back when the program empties them
  uint64_t overhead_bytes = 0;  // taken by the driver for it
  bool estimated = false;       // that is a guess still
};

struct ProcessView {
  uint32_t host_pid = 0;  // 0: the broker does not know it
  uint32_t own_pid = 0;   // in its own pid namespace
  std::string name;
  std::vector<MemoryView> memory;  // per GPU of the slice
  uint32_t contexts = 0;
  uint32_t waiting = 0;
  bool outstanding = false;
};

struct RefusalView {
  uint64_t time_ns = 0;  // CLOCK_REALTIME
  uint64_t request_bytes = 0, used_bytes = 0, quota_bytes = 0;
  uint64_t overhead_bytes = 0;     // the driver's part of used_bytes
  uint64_t peer_pooled_bytes = 0;  // in other processes' pools
  uint32_t gpu = 0, own_pid = 0;
  std::string name, function;
};

struct CounterView {
  const char* name;
  const char* meaning;
  uint64_t value;
};

struct SliceView {
  std::string id;
  std::string directory;
  uint64_t sampled_ns = 0;  // CLOCK_MONOTONIC
  std::vector<GpuView> gpus;
  uint32_t compute_percent = 0, compute_limit_percent = 0, priority = 0;
  uint64_t held_ns = 0, waited_ns = 0, turns = 0, overruns = 0;
  bool rates_known = false;  // false: nothing is metered, or it is too long ago
  // Percent of one GPU over the last 1, 10 and 60 s: received, and with work to do.
  double received_rates[shm::kRateWindows] = {}, wanted_rates[shm::kRateWindows] = {};
  bool open = false;      // its launches are neither held nor metered
  std::string condition;  // in a word
  uint32_t broker_pid = 0;
  std::vector<ProcessView> processes;
  std::vector<RefusalView> refusals;  // oldest first
  std::vector<CounterView> counters;
  std::vector<std::string> unknown_functions;  // looked up, and not in the table; by name
};

// A tenant wrote it: nothing of it may drive the terminal.
std::string printable(std::string text);

broker::Status read_slice(const std::string& directory, SliceView* view);

// All slices of a run directory by id. What cannot be read is left out and said in *problems.
std::vector<SliceView> read_slices(const broker::RunDirectory& run, std::vector<std::string>* problems);

// GPU time received between two samples, in percent of one GPU. Negative: unknown.
double received_percent(const SliceView& before, const SliceView& after);

}  // namespace ctl
