// SPDX-License-Identifier: Apache-2.0
//
// Asks the slice for memory before the driver is asked, and gives it back. Nothing is held across a driver
// call.
#pragma once

#include "interpose/driver.h"
#include "interpose/session.h"

namespace hook {

// What the driver takes for an allocation of n bytes: small ones share a 2 MiB granule, larger ones are whole
// granules.
constexpr uint64_t kSmallBytes = uint64_t{1} << 20;
constexpr uint64_t kSmallGranule = 512;
constexpr uint64_t kGranule = uint64_t{2} << 20;
constexpr uint64_t granules(uint64_t bytes) {
  if (bytes > shm::kLedgerBytesMask) return bytes;  // refused whatever the quota is
  const uint64_t granule = bytes <= kSmallBytes ? kSmallGranule : kGranule;
  return (bytes + granule - 1) & ~(granule - 1);
}

// What a call of this thread may take.
enum class Standing : uint8_t {
  kUnlimited,  // no slice, or none of this GPU: to the driver as it came
  kLimited,
  kClosed,  // the driver was never initialised: CUDA_ERROR_NOT_INITIALIZED
};
// On the GPU of the current context. Without a context it is kUnlimited: the driver has the right error for
// that.
Standing standing_in_context(SliceGpu* gpu);
Standing standing_on_device(int device, SliceGpu* gpu);

// CUDA_SUCCESS, and `bytes` are charged; or CUDA_ERROR_OUT_OF_MEMORY after this process's pools were trimmed,
// and the refusal is in the slice's log. `function` is the driver's name of what was called.
CUresult take(const char* function, const SliceGpu& gpu, uint64_t bytes);
CUresult take_context(const char* function, const SliceGpu& gpu);
// As take(), but neither trims nor reports: for whoever has another way.
bool try_take(const SliceGpu& gpu, uint64_t bytes);
void give_back(const SliceGpu& gpu, uint64_t bytes);

// Calls the driver for memory that was taken. If it has none, cached memory of this process's pools is given
// to it and it is asked once more; a refusal is counted as the GPU's.
template <typename Call>
CUresult ask_driver(const char* function, const SliceGpu& gpu, uint64_t bytes, Call call);

// The refusals of this process: each goes to the slice's log, the first to stderr too.
void report_refusal(const char* function, const SliceGpu& gpu, uint64_t bytes);
void report_full_gpu(const char* function, const SliceGpu& gpu, uint64_t bytes);

// Returns cached memory of this process's pools on the GPU to the driver and to the slice. How many bytes
// came back.
uint64_t trim_pools(const SliceGpu& gpu);
// Reads anew what the pools hold; they shrink without a call.
void settle_pools(const SliceGpu& gpu);

// In a forked child, before its own attach: all that is known about memory and contexts is the parent's.
void forget_memory();

template <typename Call>
CUresult ask_driver(const char* function, const SliceGpu& gpu, uint64_t bytes, Call call) {
  CUresult result = call();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && trim_pools(gpu) != 0) result = call();
  if (result == CUDA_ERROR_OUT_OF_MEMORY) report_full_gpu(function, gpu, bytes);
  return result;
}

}  // namespace hook
