// SPDX-License-Identifier: Apache-2.0
//
// other_gpus_are_off_limits OWN: of the node's two GPUs device OWN is the slice's (2: neither). The other is
// seen as the driver has it, and gives nothing: no context, no memory.
#include <cstring>
#include <initializer_list>

#include "behaviour.h"

namespace {

CUresult create_context(CUcontext* context, CUdevice device) {
#if CUDA_VERSION >= 13000
  return cuCtxCreate(context, nullptr, 0, device);
#else
  return cuCtxCreate(context, 0, device);
#endif
}

void is_seen(CUdevice device) {
  CUuuid uuid, nothing = {};
  size_t total;
  int processors;
  OK(cuDeviceGetUuid(&uuid, device));
  MUST(memcmp(&uuid, &nothing, sizeof uuid) != 0);
  OK(cuDeviceTotalMem(&total, device));
  MUST(total > 64 * 1024 * kMiB);
  OK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
  MUST(processors > 0);
}

void gives_nothing(CUdevice device) {
  CUcontext context;
  MUST_BE(cuDevicePrimaryCtxRetain(&context, device), CUDA_ERROR_DEVICE_UNAVAILABLE);
  MUST_BE(create_context(&context, device), CUDA_ERROR_DEVICE_UNAVAILABLE);

  CUmemAllocationProp memory = {};
  memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  CUmemGenericAllocationHandle handle;
  MUST_BE(cuMemCreate(&handle, kGranule, &memory, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);

  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = memory.location;
  CUmemoryPool pool;
  MUST_BE(cuMemPoolCreate(&pool, &props), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

// The pool that it has anyway, from a stream of the slice's own GPU.
void gives_nothing_from_its_pool(CUdevice device) {
  CUmemoryPool pool;
  CUdeviceptr pointer;
  OK(cuDeviceGetDefaultMemPool(&pool, device));
  for (int again = 0; again < 2; again++) {
    MUST_BE(cuMemAllocFromPoolAsync(&pointer, kGranule, pool, nullptr), CUDA_ERROR_DEVICE_UNAVAILABLE);
  }
}

// Managed memory may be kept on the slice's GPU and the host only.
void takes_no_managed_memory(CUdevice device, CUdevice own) {
  const CUmemLocation there = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  const CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, {own}};
  CUdeviceptr pointer;
  OK(cuMemAllocManaged(&pointer, kGranule, CU_MEM_ATTACH_GLOBAL));
  for (const CUmemLocation& location : {here, there}) {
    const CUresult expected = location.id == own ? CUDA_SUCCESS : CUDA_ERROR_DEVICE_UNAVAILABLE;
#if CUDA_VERSION >= 13000
    MUST_BE(cuMemPrefetchAsync(pointer, kGranule, location, 0, nullptr), expected);
    MUST_BE(cuMemAdvise(pointer, kGranule, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location), expected);
#else
    MUST_BE(cuMemPrefetchAsync_v2(pointer, kGranule, location, 0, nullptr), expected);
    MUST_BE(cuMemAdvise_v2(pointer, kGranule, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location), expected);
#endif
  }
  OK(cuMemFree(pointer));
}

}  // namespace

int main(int argc, char** argv) {
  const auto own = static_cast<CUdevice>(argument(argc, argv, 1));
  int count;
  OK(cuInit(0));
  OK(cuDeviceGetCount(&count));
  MUST(count == 2);
  for (CUdevice device = 0; device < count; device++) {
    if (device == own) continue;
    is_seen(device);
    gives_nothing(device);
  }
  if (own == count) return finish();
  CUcontext context;
  OK(cuDevicePrimaryCtxRetain(&context, own));
  OK(cuCtxSetCurrent(context));
  gives_nothing_from_its_pool(1 - own);
  takes_no_managed_memory(1 - own, own);
  CUdeviceptr pointer;
  OK(cuMemAlloc(&pointer, kGranule));
  // Greater than any number of granules.
  constexpr size_t kTooMany[] = {~size_t{0}, ~size_t{0} - kGranule, size_t{1} << 63, (size_t{1} << 48) - 1};
  for (const size_t bytes : kTooMany) {
    MUST_BE(cuMemAlloc(&pointer, bytes), CUDA_ERROR_OUT_OF_MEMORY);
  }
  return finish();
}
