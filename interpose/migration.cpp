// SPDX-License-Identifier: Apache-2.0
//
// Where managed memory goes. It is charged in full when it is allocated, to the GPU whose context is current
// then; so it may move to that GPU or to the host, but not to a GPU that is off limits.
#include "interpose/locations.h"
#include "interpose/quota.h"

namespace hook {
namespace {

CUresult barred_from(const CUmemLocation& location) {
  SliceGpu gpu;
  if (!is_on_device(location)) return CUDA_SUCCESS;
  const CUdevice device = device_of(location);
  return barred(standing_on_device(device, &gpu), device);
}

// CU_DEVICE_CPU, or a device.
CUresult barred_from(CUdevice device) {
  SliceGpu gpu;
  return device == CU_DEVICE_CPU ? CUDA_SUCCESS : barred(standing_on_device(device, &gpu), device);
}

CUresult barred_from(const CUmemLocation* locations, size_t count) {
  for (size_t i = 0; locations != nullptr && i < count; i++) {
    if (const CUresult refused = barred_from(locations[i]); refused != CUDA_SUCCESS) return refused;
  }
  return CUDA_SUCCESS;
}

// Advice that undoes other advice sends nothing anywhere.
bool sends_memory(CUmem_advise advice) {
  return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
}

template <typename Call>
CUresult unless(CUresult refused, Call call) {
  return refused != CUDA_SUCCESS ? refused : call();
}

}  // namespace

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) noexcept {
  return unless(barred_from(dstDevice),
                [=] { return real<fn::cuMemPrefetchAsync>(devPtr, count, dstDevice, hStream); });
}
CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                                 CUstream hStream) noexcept {
  return unless(barred_from(dstDevice),
                [=] { return real<fn::cuMemPrefetchAsync_ptsz>(devPtr, count, dstDevice, hStream); });
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                               CUstream hStream) noexcept {
  return unless(barred_from(location),
                [=] { return real<fn::cuMemPrefetchAsync_v2>(devPtr, count, location, flags, hStream); });
}
CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                    unsigned int flags, CUstream hStream) noexcept {
  return unless(barred_from(location), [=] {
    return real<fn::cuMemPrefetchAsync_v2_ptsz>(devPtr, count, location, flags, hStream);
  });
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count, CUmemLocation* prefetchLocs,
                                 size_t* prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,
                                 CUstream hStream) noexcept {
  return unless(barred_from(prefetchLocs, numPrefetchLocs), [=] {
    return real<fn::cuMemPrefetchBatchAsync>(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
                                             numPrefetchLocs, flags, hStream);
  });
}
CUresult cuMemPrefetchBatchAsync_ptsz(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                      CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                      size_t numPrefetchLocs, unsigned long long flags,
                                      CUstream hStream) noexcept {
  return unless(barred_from(prefetchLocs, numPrefetchLocs), [=] {
    return real<fn::cuMemPrefetchBatchAsync_ptsz>(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
                                                  numPrefetchLocs, flags, hStream);
  });
}
CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                           CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                           size_t numPrefetchLocs, unsigned long long flags,
                                           CUstream hStream) noexcept {
  return unless(barred_from(prefetchLocs, numPrefetchLocs), [=] {
    return real<fn::cuMemDiscardAndPrefetchBatchAsync>(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
                                                       numPrefetchLocs, flags, hStream);
  });
}
CUresult cuMemDiscardAndPrefetchBatchAsync_ptsz(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                                CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                                size_t numPrefetchLocs, unsigned long long flags,
                                                CUstream hStream) noexcept {
  return unless(barred_from(prefetchLocs, numPrefetchLocs), [=] {
    return real<fn::cuMemDiscardAndPrefetchBatchAsync_ptsz>(dptrs, sizes, count, prefetchLocs,
                                                            prefetchLocIdxs, numPrefetchLocs, flags, hStream);
  });
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) noexcept {
  return unless(sends_memory(advice) ? barred_from(device) : CUDA_SUCCESS,
                [=] { return real<fn::cuMemAdvise>(devPtr, count, advice, device); });
}
CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation location) noexcept {
  return unless(sends_memory(advice) ? barred_from(location) : CUDA_SUCCESS,
                [=] { return real<fn::cuMemAdvise_v2>(devPtr, count, advice, location); });
}

}  // namespace hook
