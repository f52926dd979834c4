// SPDX-License-Identifier: Apache-2.0
//
// The memory that graphs allocate. It is taken from the device when a graph is uploaded or launched, reused
// by the next launch, and given back when the program trims it or the device's last context ends. The
// addresses are a node's for as long as the node, an executable graph made of it, or a live allocation is
// there.
#pragma once

#include "sim/driver/memory.h"

namespace sim {

struct GraphPlan;

// Address space of an allocation node.
struct GraphRange {
  const uint64_t bytes;
  const uint64_t base;  // 0: the address space is used up

  explicit GraphRange(uint64_t bytes);
  ~GraphRange();
  GraphRange(const GraphRange&) = delete;
  GraphRange& operator=(const GraphRange&) = delete;
};

// True if an allocation node has this address.
bool is_graph_address(uint64_t address);

// Sees to it that the device holds what a launch of the plan needs.
CUresult reserve_graph_memory(const GraphPlan& plan);
// The same, and makes the plan's allocations live. CUDA_ERROR_INVALID_VALUE: one of them still is and
// free_first is not set.
CUresult take_graph_memory(const GraphPlan& plan, bool free_first);
void release_graph_memory(const Allocation& allocation);
void release_all_graph_memory(CUdevice device);

}  // namespace sim
