// SPDX-License-Identifier: Apache-2.0
//
// How much memory a CUDA array takes, from its description: texels, without the driver's tiling and padding,
// which the broker finds as overhead. 0 for arrays that get no memory of their own, and for a nullptr.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <cstdint>

namespace hook {

uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR_v1* array);
uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR* array);
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v1* array);
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR* array);
uint64_t mipmapped_bytes(const CUDA_ARRAY3D_DESCRIPTOR* base, unsigned int levels);

}  // namespace hook
