// SPDX-License-Identifier: Apache-2.0
//
// CUDA arrays and mipmapped arrays: device memory with a shape.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
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
  // Of a sparse or deferred one: what of it is mapped to which handle's memory, by place; see sparse.cpp.
  std::map<std::array<uint64_t, 5>, uint64_t> mapped = {};

  size_t rows() const { return std::max<size_t>(descriptor.Height, 1); }
  size_t layers() const { return std::max<size_t>(descriptor.Depth, 1); }
  size_t bytes() const { return row_bytes * rows() * layers(); }
};

struct CUmipmappedArray_st {
  uint64_t base;
  std::vector<CUarray_st> levels;
  std::shared_ptr<const void> keeps;  // of external memory; nullptr: the memory is the array's own
};

namespace sim {

bool is_array(CUarray array);

// A mipmapped array in memory that somebody else has, kept while the array is there.
CUresult mipmap_in(CUmipmappedArray* result, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned level_count,
                   uint64_t base, uint64_t room_bytes, std::shared_ptr<const void> keeps);

// Whether it is made without memory, for cuMemMapArrayAsync to give it some.
inline bool is_mapped_later(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  return (descriptor.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
}
// Lets go of all that is mapped.
void unmap_array(CUarray_st* array);

}  // namespace sim
