// SPDX-License-Identifier: Apache-2.0
//
// How much memory there is: the slice's, and never more than the driver has.
#include <algorithm>
#include <limits>

#include "interpose/quota.h"
#include "interpose/reservoirs.h"

namespace hook {
namespace {

// The arguments may be nullptr where the driver allows it.
template <typename Size>
void show_slice(const SliceGpu& gpu, Size* free, Size* total) {
  const limiter::Usage usage = limiter::usage(*gpu.slice->limits, *gpu.slice->state, gpu.index);
  constexpr uint64_t kMost = std::numeric_limits<Size>::max();
  if (free != nullptr) *free = static_cast<Size>(std::min({uint64_t{*free}, usage.free_bytes(), kMost}));
  if (total != nullptr) *total = static_cast<Size>(std::min({uint64_t{*total}, usage.quota_bytes, kMost}));
}

template <typename Size>
CUresult memory_info(CUresult result, Size* free, Size* total) {
  SliceGpu gpu;
  if (result != CUDA_SUCCESS || standing_in_context(&gpu) != Standing::kLimited) return result;
  settle_reservoirs(InFlight(gpu));
  show_slice(gpu, free, total);
  return result;
}

template <typename Size>
CUresult total_memory(CUresult result, Size* bytes, CUdevice device) {
  SliceGpu gpu;
  if (result == CUDA_SUCCESS && standing_on_device(device, &gpu) == Standing::kLimited) {
    show_slice(gpu, static_cast<Size*>(nullptr), bytes);
  }
  return result;
}

}  // namespace

CUresult cuMemGetInfo(unsigned int* free, unsigned int* total) noexcept {
  return memory_info(real<fn::cuMemGetInfo>(free, total), free, total);
}
CUresult cuMemGetInfo_v2(size_t* free, size_t* total) noexcept {
  return memory_info(real<fn::cuMemGetInfo_v2>(free, total), free, total);
}

CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice dev) noexcept {
  return total_memory(real<fn::cuDeviceTotalMem>(bytes, dev), bytes, dev);
}
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) noexcept {
  return total_memory(real<fn::cuDeviceTotalMem_v2>(bytes, dev), bytes, dev);
}

}  // namespace hook
