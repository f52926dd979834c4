// SPDX-License-Identifier: Apache-2.0
//
// Memory pools (cuMemAllocAsync and its kin), and the memory that graphs allocate. A pool takes memory from
// the device in chunks and keeps free ones up to its release threshold; what is above goes back when the
// program synchronises, or when the device is full.
#pragma once

#include "sim/driver/memory.h"

namespace sim {

void release_to_pool(const Allocation& allocation);

// Gives back all chunks of the device's pools that hold nothing. True if there were any.
bool trim_unused_pool_memory(CUdevice device);
// What a synchronisation does: gives back what is above the thresholds. Cheap when nothing was freed.
void release_idle_pool_memory(CUdevice device);
// Ends all allocations and chunks, when the device's last context goes.
void release_pools(CUdevice device);

}  // namespace sim
