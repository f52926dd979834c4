// SPDX-License-Identifier: Apache-2.0
//
// The driver that costs nothing, with one function written by hand.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>

#include "generated/null/declarations.inc"

CUresult null_cuStreamQuery(CUstream) { return CUDA_ERROR_NOT_READY; }
