// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace broker {

// What the processes of a slice can be known by, attached or not.
struct SliceMarks {
  uint64_t key = 0;
  std::string directory;  // CUSLICE_SLICE names it
  dev_t device = 0;       // of its `limits`, which its containers have mounted
  ino_t inode = 0;        // likewise
  std::string cgroup;     // of its containers, as in /proc/<pid>/cgroup; empty: not known
  std::vector<int> node_gpus;
  pid_t owner = 0;          // what this process starts is the slice's; 0: none
  std::vector<pid_t> pids;  // attached; what these start is the slice's too
};

// The slice that a process belongs to, whatever it does to its environment or its preload. In this order: the
// slice is mounted in its file system; it is in the slice's cgroup; it was started with CUSLICE_SLICE; one of
// its ancestors is in the slice, or owns it and no other. Nothing: none of these, or the process is gone.
std::optional<uint64_t> slice_of(pid_t pid, const std::vector<SliceMarks>& slices);

}  // namespace broker
