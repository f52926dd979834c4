// SPDX-License-Identifier: Apache-2.0
//
// What this process holds in contexts: linear memory by its address, arrays by their handle. It ends with a
// free, or with its context.
#pragma once

#include "interpose/quota.h"

namespace hook {

struct Allocation {
  SliceGpu gpu;
  uint64_t bytes;  // charged; a multiple of kSmallGranule
  bool managed;
};

// Remembers an allocation in the current context. false: no host memory to do so.
bool remember(uint64_t key, const Allocation& allocation);

// Frees by `call`. What we know nothing of goes to the driver all the same.
template <typename Call>
CUresult freed(uint64_t key, Call call);

// The driver has freed all that was allocated in a context, when it went away.
void context_is_gone(const InFlight& call, CUcontext context);

// What is allocated in `context` from now on lives as long as `owner`.
void belongs_to(CUcontext context, CUcontext owner);
// Its handle means another context from now on; what was allocated in it stays its owner's.
void belongs_to_nobody(CUcontext context);

// For freed(): takes the key's record away before the driver is called (it may hand out the address again at
// once), puts it back if the driver would not, or gives the bytes back to the slice.
bool take_record(uint64_t key, uint64_t* record);
void put_record_back(uint64_t key, uint64_t record);
void give_record_back(const InFlight& call, uint64_t record);
SliceGpu gpu_in_record(uint64_t record);

template <typename Call>
CUresult freed(uint64_t key, Call call) {
  uint64_t record;
  if (!take_record(key, &record)) return call();
  const InFlight in_flight(gpu_in_record(record));
  const CUresult result = call();
  if (result == CUDA_SUCCESS) {
    give_record_back(in_flight, record);
  } else {
    put_record_back(key, record);
  }
  return result;
}

// Handles are addresses of the driver's host memory, aligned; odd keys keep them apart from device addresses.
inline uint64_t array_key(CUarray array) { return reinterpret_cast<uint64_t>(array) | 1; }
inline uint64_t array_key(CUmipmappedArray array) { return reinterpret_cast<uint64_t>(array) | 1; }

void forget_allocations();

}  // namespace hook
