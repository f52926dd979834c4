// SPDX-License-Identifier: Apache-2.0
//
// Frees that we know nothing of are the driver's, and a free that it refuses gives nothing back.
#include "behaviour.h"

int main() {
  start();
  const uint64_t before = free_bytes();
  CUdeviceptr pointer;

  OK(cuMemFree(0));
  MUST(cuMemFree(0x1234500000) != CUDA_SUCCESS);
  MUST(free_bytes() == before);

  // An allocation of the pool, freed by the call for all others.
  OK(cuMemAllocAsync(&pointer, 64 * kMiB, nullptr));
  OK(cuStreamSynchronize(nullptr));
  OK(cuMemFree(pointer));
  OK(cuCtxSynchronize());

  OK(cuMemAlloc(&pointer, 64 * kMiB));
  const uint64_t with_it = free_bytes();
  MUST(cuMemFree(pointer + 4096) != CUDA_SUCCESS);
  MUST(free_bytes() == with_it);
  OK(cuMemFree(pointer));
  MUST(free_bytes() == with_it + 64 * kMiB);
  MUST(cuMemFree(pointer) != CUDA_SUCCESS);
  MUST(free_bytes() == with_it + 64 * kMiB);

  // Nothing is freed as often as nullptr.
  for (int i = 0; i < 1000; i++) OK(cuMemFree(0));
  OK(cuMemAlloc(&pointer, 64 * kMiB));
  for (int i = 0; i < 1000; i++) OK(cuMemFree(0));
  MUST(free_bytes() == with_it);
  OK(cuMemFree(pointer));
  return finish();
}
