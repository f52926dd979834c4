// SPDX-License-Identifier: Apache-2.0
//
// Linear memory and arrays of the current context.

#include "interpose/allocations.h"
#include "interpose/array_size.h"
#include "interpose/quota.h"
#include "interpose/vmm.h"

namespace hook {
namespace {

// `key` tells what the driver made, `undo` takes it back; both after a successful `call` only.
template <typename Call, typename Key, typename Undo>
CUresult charged(const char* function, uint64_t bytes, bool managed, Call call, Key key, Undo undo) {
  SliceGpu gpu;
  const Standing standing = standing_in_context(&gpu);
  if (const CUresult refused = barred(standing); refused != CUDA_SUCCESS) return refused;
  if (standing == Standing::kUnlimited || bytes == 0) return call();
  bytes = managed ? whole_granules(bytes) : granules(bytes);
  InFlight in_flight(gpu);
  if (const CUresult refused = take_with_waste(function, in_flight, bytes); refused != CUDA_SUCCESS)
    return refused;
  CUresult result = ask_driver(function, in_flight, bytes, call);
  if (result == CUDA_SUCCESS && !remember(key(), {gpu, bytes, managed})) {
    undo();
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) {
    give_back_with_waste(in_flight, bytes);
  } else if (managed) {
    add_managed(in_flight, static_cast<int64_t>(bytes));
  }
  return result;
}

template <typename Pointer, typename Call, typename Free>
CUresult charged_linear(const char* function, Pointer* pointer, uint64_t bytes, Call call, Free free) {
  if (pointer == nullptr) return call();
  return charged(
      function, bytes, false, call, [=] { return static_cast<uint64_t>(*pointer); }, [=] { free(*pointer); });
}

// The pitch is the driver's choice. What it is likely to choose is taken first, and set right once it is
// known.
constexpr uint64_t kLikelyPitch = 512;

template <typename Pointer, typename Size, typename Call, typename Free>
CUresult charged_pitch(const char* function, Pointer* pointer, Size* pitch, uint64_t width, uint64_t height,
                       Call call, Free free) {
  SliceGpu gpu;
  const Standing standing = standing_in_context(&gpu);
  if (const CUresult refused = barred(standing); refused != CUDA_SUCCESS) return refused;
  if (standing == Standing::kUnlimited || pointer == nullptr || pitch == nullptr || width == 0 ||
      height == 0) {
    return call();
  }
  uint64_t likely_bytes;
  if (width > shm::kLedgerBytesMask ||
      __builtin_mul_overflow((width + kLikelyPitch - 1) & ~(kLikelyPitch - 1), height, &likely_bytes)) {
    likely_bytes = ~uint64_t{0};
  }
  const uint64_t taken = granules(likely_bytes);
  InFlight in_flight(gpu);
  if (const CUresult refused = take(function, in_flight, taken); refused != CUDA_SUCCESS) return refused;
  CUresult result = ask_driver(function, in_flight, taken, call);
  if (result != CUDA_SUCCESS) {
    give_back(in_flight, taken);
    return result;
  }
  const uint64_t bytes = granules(static_cast<uint64_t>(*pitch) * height);
  if (bytes < taken) give_back(in_flight, taken - bytes);
  uint64_t charged_bytes = bytes < taken ? bytes : taken;
  if (bytes > taken) {
    if (try_take_or_trim(in_flight, bytes - taken)) {
      charged_bytes = bytes;
    } else {
      report_refusal(function, gpu, bytes);
      result = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  if (result == CUDA_SUCCESS && !remember(static_cast<uint64_t>(*pointer), {gpu, charged_bytes, false})) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) {
    free(*pointer);
    give_back(in_flight, charged_bytes);
  }
  return result;
}

template <typename Array, typename Call, typename Destroy>
CUresult charged_array(const char* function, Array* array, uint64_t bytes, Call call, Destroy destroy) {
  if (array == nullptr) return call();
  return charged(
      function, bytes, false, call, [=] { return array_key(*array); }, [=] { destroy(*array); });
}

// A sparse array has no memory of its own, but what is bound to its tiles.
template <typename Call>
CUresult array_destroyed(uint64_t key, Call call) {
  if (!has_bindings(key)) return freed(key, call);
  const InFlightOnAll in_flight;
  const CUresult result = call();
  if (result == CUDA_SUCCESS) unbind_all(key);
  return result;
}

void free_linear(CUdeviceptr pointer) { real<fn::cuMemFree_v2>(pointer); }
void free_linear_v1(CUdeviceptr_v1 pointer) { real<fn::cuMemFree>(pointer); }
void destroy_array(CUarray array) { real<fn::cuArrayDestroy>(array); }
void destroy_mipmapped(CUmipmappedArray array) { real<fn::cuMipmappedArrayDestroy>(array); }

}  // namespace

CUresult cuMemAlloc(CUdeviceptr_v1* dptr, unsigned int bytesize) noexcept {
  return charged_linear(
      "cuMemAlloc", dptr, bytesize, [=] { return real<fn::cuMemAlloc>(dptr, bytesize); }, free_linear_v1);
}
CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) noexcept {
  return charged_linear(
      "cuMemAlloc", dptr, bytesize, [=] { return real<fn::cuMemAlloc_v2>(dptr, bytesize); }, free_linear);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1* dptr, unsigned int* pPitch, unsigned int WidthInBytes,
                         unsigned int Height, unsigned int ElementSizeBytes) noexcept {
  return charged_pitch(
      "cuMemAllocPitch", dptr, pPitch, WidthInBytes, Height,
      [=] { return real<fn::cuMemAllocPitch>(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes); },
      free_linear_v1);
}
CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) noexcept {
  return charged_pitch(
      "cuMemAllocPitch", dptr, pPitch, WidthInBytes, Height,
      [=] { return real<fn::cuMemAllocPitch_v2>(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes); },
      free_linear);
}

// Counted in full although its pages may be in host memory: any of them can be on the GPU when it is used.
// Pages do not mix allocations, so each counts as whole granules.
CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) noexcept {
  const auto call = [=] { return real<fn::cuMemAllocManaged>(dptr, bytesize, flags); };
  if (dptr == nullptr) return call();
  return charged(
      "cuMemAllocManaged", bytesize, true, call, [=] { return *dptr; }, [=] { free_linear(*dptr); });
}

CUresult cuMemFree(CUdeviceptr_v1 dptr) noexcept {
  return freed(dptr, [=] { return real<fn::cuMemFree>(dptr); });
}
CUresult cuMemFree_v2(CUdeviceptr dptr) noexcept {
  return freed(dptr, [=] { return real<fn::cuMemFree_v2>(dptr); });
}

CUresult cuArrayCreate(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR_v1* pAllocateArray) noexcept {
  return charged_array(
      "cuArrayCreate", pHandle, array_bytes(pAllocateArray),
      [=] { return real<fn::cuArrayCreate>(pHandle, pAllocateArray); }, destroy_array);
}
CUresult cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) noexcept {
  return charged_array(
      "cuArrayCreate", pHandle, array_bytes(pAllocateArray),
      [=] { return real<fn::cuArrayCreate_v2>(pHandle, pAllocateArray); }, destroy_array);
}
CUresult cuArray3DCreate(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1* pAllocateArray) noexcept {
  return charged_array(
      "cuArray3DCreate", pHandle, array_bytes(pAllocateArray),
      [=] { return real<fn::cuArray3DCreate>(pHandle, pAllocateArray); }, destroy_array);
}
CUresult cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) noexcept {
  return charged_array(
      "cuArray3DCreate", pHandle, array_bytes(pAllocateArray),
      [=] { return real<fn::cuArray3DCreate_v2>(pHandle, pAllocateArray); }, destroy_array);
}
CUresult cuArrayDestroy(CUarray hArray) noexcept {
  return array_destroyed(array_key(hArray), [=] { return real<fn::cuArrayDestroy>(hArray); });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) noexcept {
  return charged_array(
      "cuMipmappedArrayCreate", pHandle, mipmapped_bytes(pMipmappedArrayDesc, numMipmapLevels),
      [=] { return real<fn::cuMipmappedArrayCreate>(pHandle, pMipmappedArrayDesc, numMipmapLevels); },
      destroy_mipmapped);
}
CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) noexcept {
  return array_destroyed(array_key(hMipmappedArray),
                         [=] { return real<fn::cuMipmappedArrayDestroy>(hMipmappedArray); });
}

}  // namespace hook
