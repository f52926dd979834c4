// SPDX-License-Identifier: Apache-2.0
//
// Copies and sets, done by the CPU. Every form of copy is brought to the 3D one, every set to the 2D one.
#pragma once

#include "sim/driver/api.h"

namespace sim {

void copy_memory(const CUDA_MEMCPY3D& params);
uint64_t copied_bytes(const CUDA_MEMCPY3D& params);
// CUDA_ERROR_INVALID_VALUE for memory that is not there, a pitch below the width, an array too small.
CUresult check_copy(const CUDA_MEMCPY3D& params);

void set_memory(const CUDA_MEMSET_NODE_PARAMS_v2& params);
uint64_t set_bytes(const CUDA_MEMSET_NODE_PARAMS_v2& params);

}  // namespace sim
