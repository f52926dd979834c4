// SPDX-License-Identifier: Apache-2.0
//
// cuMemCreate's memory is given back when its last handle and its last mapping are gone, in any order; host
// memory and imports are not charged at all.
#include "behaviour.h"

int main() {
  const CUdevice device = start();
  const uint64_t before = free_bytes();
  constexpr uint64_t kBytes = 512 * kMiB;
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  CUmemGenericAllocationHandle handle, again;
  CUdeviceptr range;
  OK(cuMemAddressReserve(&range, 4 * kBytes, 0, 0, 0));

  OK(cuMemCreate(&handle, kBytes, &prop, 0));
  MUST(free_bytes() == before - kBytes);
  OK(cuMemRelease(handle));
  MUST(free_bytes() == before);

  // Handle first, then two mappings of it.
  OK(cuMemCreate(&handle, kBytes, &prop, 0));
  OK(cuMemMap(range, kBytes, 0, handle, 0));
  OK(cuMemMap(range + kBytes, kBytes, 0, handle, 0));
  OK(cuMemRelease(handle));
  MUST(free_bytes() == before - kBytes);
  OK(cuMemUnmap(range, kBytes));
  MUST(free_bytes() == before - kBytes);
  OK(cuMemUnmap(range + kBytes, kBytes));
  MUST(free_bytes() == before);

  // A handle that was got from an address inside of a mapping, after the first one was released.
  OK(cuMemCreate(&handle, kBytes, &prop, 0));
  OK(cuMemMap(range, kBytes, 0, handle, 0));
  OK(cuMemRelease(handle));
  OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range + kBytes / 2)));
  OK(cuMemUnmap(range, kBytes));
  MUST(free_bytes() == before - kBytes);
  OK(cuMemRelease(again));
  MUST(free_bytes() == before);

  // Two allocations side by side, unmapped in one call.
  CUmemGenericAllocationHandle second;
  OK(cuMemCreate(&handle, kBytes, &prop, 0));
  OK(cuMemCreate(&second, kBytes, &prop, 0));
  OK(cuMemMap(range, kBytes, 0, handle, 0));
  OK(cuMemMap(range + kBytes, kBytes, 0, second, 0));
  OK(cuMemRelease(handle));
  OK(cuMemRelease(second));
  MUST(free_bytes() == before - 2 * kBytes);
  OK(cuMemUnmap(range, 2 * kBytes));
  MUST(free_bytes() == before);

  // A refused mapping changes nothing.
  OK(cuMemCreate(&handle, kBytes, &prop, 0));
  MUST(cuMemMap(range + 1, kBytes, 0, handle, 0) != CUDA_SUCCESS);
  OK(cuMemRelease(handle));
  MUST(free_bytes() == before);

  // More than the slice has, on the host: the driver's business.
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  if (cuMemCreate(&handle, 8192 * kMiB, &prop, 0) == CUDA_SUCCESS) {
    MUST(free_bytes() == before);
    OK(cuMemRelease(handle));
  }
  return finish();
}
