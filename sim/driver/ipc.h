// SPDX-License-Identifier: Apache-2.0
//
// cuIpc*Mem*: another process' device memory. Works between processes that see each other in /proc and may
// read each other's descriptors; across pid namespaces it does not.
#pragma once

#include "sim/driver/memory.h"

namespace sim {

// Device memory of a process as others can find it.
struct SharedRange {
  int32_t pid;
  int32_t fd;
  uint64_t inode;  // that the process still has the same file under this number
  uint64_t offset;
  uint64_t bytes;
};

CUresult share_range(uint64_t address, uint64_t bytes, SharedRange* range);
// Not in the process that shared it. unmap_range() ends it.
CUresult map_range(const SharedRange& range, void** mapping);
void unmap_range(void* mapping, uint64_t bytes);

void close_imported_memory(const Allocation& allocation);

}  // namespace sim
