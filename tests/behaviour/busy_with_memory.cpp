// SPDX-License-Identifier: Apache-2.0
//
// busy_with_memory take|take-async|contexts SECONDS, until then:
//   take      takes 256 MiB pieces until one is refused, frees all, and again, with no pause in between;
//   take-async  the same from the device's pool, which gives its memory back to the GPU whenever the stream
//   is
//             waited for;
//   contexts  makes a context and ends it: each time, the broker looks at what every process has.
#include <cstring>
#include <ctime>
#include <vector>

#include "behaviour.h"

namespace {

constexpr uint64_t kPiece = 256 * kMiB;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  MUST(argc == 3);
  const uint64_t end_ns = now_ns() + argument(argc, argv, 2) * 1'000'000'000;
  if (strcmp(argv[1], "contexts") == 0) {
    OK(cuInit(0));
    while (now_ns() < end_ns) {
      CUcontext context;
      OK(cuDevicePrimaryCtxRetain(&context, 0));
      OK(cuDevicePrimaryCtxRelease(0));
    }
    return finish();
  }
  const bool async = strcmp(argv[1], "take-async") == 0;
  const auto take = [=](CUdeviceptr* pointer) {
    return async ? cuMemAllocAsync(pointer, kPiece, nullptr) : cuMemAlloc(pointer, kPiece);
  };
  start();
  uint64_t most = 0;
  uint64_t least = UINT64_MAX;  // at a refusal
  uint64_t refusals = 0;
  while (now_ns() < end_ns) {
    std::vector<CUdeviceptr> held;
    CUdeviceptr pointer;
    CUresult result;
    while ((result = take(&pointer)) == CUDA_SUCCESS) held.push_back(pointer);
    MUST_BE(result, CUDA_ERROR_OUT_OF_MEMORY);
    refusals++;
    const uint64_t taken = held.size() * kPiece;
    if (taken > most) most = taken;
    if (taken < least) least = taken;
    for (const CUdeviceptr freed : held) OK(async ? cuMemFreeAsync(freed, nullptr) : cuMemFree(freed));
    if (async) OK(cuStreamSynchronize(nullptr));
  }
  printf("{\"refusals\": %llu, \"most_bytes\": %llu, \"least_bytes\": %llu}\n",
         static_cast<unsigned long long>(refusals), static_cast<unsigned long long>(most),
         static_cast<unsigned long long>(least));
  return finish();
}
