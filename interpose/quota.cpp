// SPDX-License-Identifier: Apache-2.0
#include "interpose/quota.h"

#include "interpose/allocations.h"
#include "interpose/contexts.h"
#include "interpose/pools.h"
#include "interpose/vmm.h"

namespace hook {
namespace {

bool quarantined(const SliceGpu& gpu) {
  return (gpu.slice->limits->header.flags.load(std::memory_order_relaxed) & shm::kQuarantined) != 0;
}

template <typename Reserve>
CUresult take_by(const char* function, const SliceGpu& gpu, uint64_t bytes, Reserve reserve) {
  if (quarantined(gpu)) [[unlikely]] {
    report_refusal(function, gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (reserve() == limiter::Reservation::kGranted) [[likely]]
    return CUDA_SUCCESS;
  if (trim_pools(gpu) != 0 && reserve() == limiter::Reservation::kGranted) return CUDA_SUCCESS;
  report_refusal(function, gpu, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

Standing standing_on_device(int device, SliceGpu* gpu) {
  const Membership member = membership();
  if (member == Membership::kClosed) return Standing::kClosed;
  if (member == Membership::kTransparent) return Standing::kUnlimited;
  *gpu = gpu_of_device(device);
  return *gpu ? Standing::kLimited : Standing::kUnlimited;
}

Standing standing_in_context(SliceGpu* gpu) {
  const Membership member = membership();
  if (member == Membership::kClosed) return Standing::kClosed;
  if (member == Membership::kTransparent) return Standing::kUnlimited;
  *gpu = gpu_of_current_context();
  return *gpu ? Standing::kLimited : Standing::kUnlimited;
}

CUresult take(const char* function, const SliceGpu& gpu, uint64_t bytes) {
  return take_by(function, gpu, bytes, [&] {
    return limiter::reserve(*gpu.slice->limits, *gpu.slice->state, gpu.index, gpu.slice->slot, bytes);
  });
}

CUresult take_context(const char* function, const SliceGpu& gpu) {
  const uint64_t bytes = gpu.slice->limits->gpus[gpu.index].context_bytes.load(std::memory_order_relaxed);
  return take_by(function, gpu, bytes, [&] {
    return limiter::reserve_context(*gpu.slice->limits, *gpu.slice->state, gpu.index, gpu.slice->slot);
  });
}

bool try_take(const SliceGpu& gpu, uint64_t bytes) {
  return !quarantined(gpu) && limiter::reserve(*gpu.slice->limits, *gpu.slice->state, gpu.index,
                                               gpu.slice->slot, bytes) == limiter::Reservation::kGranted;
}

void give_back(const SliceGpu& gpu, uint64_t bytes) {
  limiter::release(*gpu.slice->state, gpu.index, gpu.slice->slot, bytes);
}

void forget_memory() {
  forget_allocations();
  forget_pools();
  forget_physical_memory();
  forget_contexts();
}

}  // namespace hook
