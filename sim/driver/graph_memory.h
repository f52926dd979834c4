// SPDX-License-Identifier: Apache-2.0
//
// The memory that graphs allocate. It is taken from the device when a graph is launched, reused by the next
// launch, and given back when the program trims it or the device's last context ends.
#pragma once

#include "sim/driver/memory.h"

namespace sim {

struct GraphPlan;

// Address space for a graph's allocation node.
uint64_t reserve_graph_address(uint64_t bytes);
// Takes what a launch of the plan needs and makes its allocations live. CUDA_ERROR_INVALID_VALUE: one of them
// still is and free_first is not set.
CUresult take_graph_memory(const GraphPlan& plan, CUctx_st* context, bool free_first);
void release_graph_memory(const Allocation& allocation);
void release_all_graph_memory(CUdevice device);

}  // namespace sim
