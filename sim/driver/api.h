// SPDX-License-Identifier: Apache-2.0
//
// How a driver function is written here: SIM_API(cuMemAlloc_v2)(CUdeviceptr* dptr, size_t bytes) { ... }
// defines the hidden function sim_cuMemAlloc_v2, which the generated export of that name jumps to. Its
// signature is held to the header's: a wrong one does not compile.
#pragma once

// Makes the header declare every version of a function under its own name.
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>
#include <cudaProfiler.h>

#define SIM_API(name)                                                           \
  extern "C" __attribute__((visibility("hidden"))) decltype(::name) sim_##name; \
  extern "C" CUresult sim_##name
