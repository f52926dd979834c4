// SPDX-License-Identifier: Apache-2.0
//
// For programs that show one behaviour each, as tenants: plain users of the driver that know nothing of
// cuslice. Each ends with EXIT-SUCCESS, or stops at the first thing that is not as it should be.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGranule = 2 * kMiB;

#define MUST(condition)                                                \
  do {                                                                 \
    if (!(condition)) {                                                \
      printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                         \
    }                                                                  \
  } while (0)

#define MUST_BE(call, expected)                                                   \
  do {                                                                            \
    const auto must_result = (call);                                              \
    if (must_result != (expected)) {                                              \
      printf("%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, int(must_result)); \
      exit(1);                                                                    \
    }                                                                             \
  } while (0)

#define OK(call) MUST_BE(call, CUDA_SUCCESS)

// Initialises the driver and makes the first device's primary context current.
inline CUdevice start() {
  CUdevice device;
  CUcontext context;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  return device;
}

inline uint64_t free_bytes() {
  size_t free, total;
  OK(cuMemGetInfo(&free, &total));
  return free;
}

// Where a program is told what to do: its first argument, or the end.
inline uint64_t argument(int argc, char** argv, int index) {
  if (index >= argc) {
    printf("argument %d is missing\n", index);
    exit(1);
  }
  return strtoull(argv[index], nullptr, 10);
}

inline int finish() {
  puts("EXIT-SUCCESS");
  return 0;
}
