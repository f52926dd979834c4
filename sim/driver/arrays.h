// SPDX-License-Identifier: Apache-2.0
//
// CUDA arrays and mipmapped arrays: device memory with a shape.
#pragma once

#include <algorithm>
#include <vector>

#include "sim/driver/api.h"
#include "sim/driver/context.h"

struct CUarray_st {
  static constexpr uint32_t kMagic = 0x61727231;
  uint32_t magic = kMagic;
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  uint64_t base;
  size_t row_bytes;
  bool owns_memory;  // false: a level of a mipmapped array

  size_t rows() const { return std::max<size_t>(descriptor.Height, 1); }
  size_t layers() const { return std::max<size_t>(descriptor.Depth, 1); }
  size_t bytes() const { return row_bytes * rows() * layers(); }
};

namespace sim {

bool is_array(CUarray array);

}  // namespace sim
