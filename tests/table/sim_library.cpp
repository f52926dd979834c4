// SPDX-License-Identifier: Apache-2.0
//
// The smallest simulator: one function of the driver, to see what the generated exports make of it.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>

#include <cstdint>

#include "generated/sim/declarations.inc"
#include "sim/default_stream.h"

thread_local int sim::per_thread_default_stream = 0;

extern "C" __attribute__((visibility("hidden"))) CUresult sim_unimplemented(std::uint32_t) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuStreamQuery(CUstream) { return CUresult(100 + sim::per_thread_default_stream); }
