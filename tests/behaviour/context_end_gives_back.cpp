// SPDX-License-Identifier: Apache-2.0
//
// The driver frees everything in a context that ends; so does the slice.
#include "behaviour.h"

int main() {
  const CUdevice device = start();
  CUcontext primary;
  OK(cuCtxGetCurrent(&primary));
  const uint64_t before = free_bytes();

  CUdeviceptr pointer;
  for (int i = 0; i < 3; i++) {
    OK(cuMemAlloc(&pointer, 700 * kMiB));
    MUST(free_bytes() == before - 700 * kMiB);
    OK(cuDevicePrimaryCtxReset(device));
    OK(cuDevicePrimaryCtxRetain(&primary, device));
    OK(cuCtxSetCurrent(primary));
    MUST(free_bytes() == before);
  }

  CUcontext other;
#if CUDA_VERSION >= 13000
  OK(cuCtxCreate(&other, nullptr, 0, device));
#else
  OK(cuCtxCreate(&other, 0, device));
#endif
  OK(cuMemAlloc(&pointer, 700 * kMiB));
  OK(cuMemAlloc(&pointer, 5 * kMiB));
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(primary));
  MUST(free_bytes() == before);
  return finish();
}
