// SPDX-License-Identifier: Apache-2.0
//
// What a pool keeps counts, freed or not, until the pool lets go of it; kept memory can be lent out again in
// a full slice, and is given up for an allocation of another kind.
#include "behaviour.h"

int main() {
  const CUdevice device = start();
  const uint64_t before = free_bytes();
  CUmemoryPool pool;
  OK(cuDeviceGetDefaultMemPool(&pool, device));
  cuuint64_t keep = ~cuuint64_t{0};
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));

  const uint64_t most = before / (32 * kMiB) * (32 * kMiB);
  CUdeviceptr pointer, other;
  OK(cuMemAllocAsync(&pointer, most, nullptr));
  OK(cuMemFreeAsync(pointer, nullptr));
  OK(cuStreamSynchronize(nullptr));
  MUST(free_bytes() == before - most);

  // In stream order, without a synchronisation in between: the slice is full, the pool is not.
  for (int i = 0; i < 10; i++) {
    OK(cuMemAllocAsync(&pointer, most / 2, nullptr));
    OK(cuMemAllocAsync(&other, most / 4, nullptr));
    OK(cuMemFreeAsync(pointer, nullptr));
    OK(cuMemFreeAsync(other, nullptr));
  }
  MUST_BE(cuMemAllocAsync(&pointer, most + 64 * kMiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuStreamSynchronize(nullptr));

  OK(cuMemAlloc(&pointer, 1024 * kMiB));  // makes the pool give up what it kept
  OK(cuMemFree(pointer));
  OK(cuMemPoolTrimTo(pool, 0));
  MUST(free_bytes() == before);

  // Captured, it is a node of a graph and takes nothing yet.
  CUstream stream;
  CUgraph graph;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemAllocAsync(&pointer, 256 * kMiB, stream));
  OK(cuMemFreeAsync(pointer, stream));
  OK(cuStreamEndCapture(stream, &graph));
  MUST(free_bytes() == before);
  OK(cuGraphDestroy(graph));
  return finish();
}
