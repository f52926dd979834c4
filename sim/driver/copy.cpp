// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/copy.h"

#include <algorithm>
#include <cstring>

#include "sim/driver/arrays.h"
#include "sim/driver/memory.h"

namespace sim {
namespace {

// One side of a copy: where its rows are.
struct Side {
  uint64_t base;
  size_t pitch;
  size_t slice;  // bytes from one layer to the next

  char* row(size_t y, size_t z) const { return reinterpret_cast<char*>(base + y * pitch + z * slice); }
};

Side make_side(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, size_t pitch,
               size_t height, size_t x, size_t y, size_t z, const CUDA_MEMCPY3D& params) {
  if (type == CU_MEMORYTYPE_ARRAY) {
    const Side side{array->base, array->row_bytes, array->row_bytes * array->rows()};
    return {reinterpret_cast<uint64_t>(side.row(y, z)) + x, side.pitch, side.slice};
  }
  const size_t row = pitch != 0 ? pitch : params.WidthInBytes;
  const size_t rows = height != 0 ? height : params.Height;
  const uint64_t base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
  return {base + x + y * row + z * row * rows, row, row * rows};
}

Side source(const CUDA_MEMCPY3D& p) {
  return make_side(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray, p.srcPitch, p.srcHeight,
                   p.srcXInBytes, p.srcY, p.srcZ, p);
}

Side destination(const CUDA_MEMCPY3D& p) {
  return make_side(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray, p.dstPitch, p.dstHeight,
                   p.dstXInBytes, p.dstY, p.dstZ, p);
}

CUresult check_side(CUmemorytype type, CUarray array, const Side& side, const CUDA_MEMCPY3D& params) {
  if (params.Depth > 1 || params.Height > 1) {
    if (side.pitch < params.WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t end =
      reinterpret_cast<uint64_t>(side.row(params.Height - 1, params.Depth - 1)) + params.WidthInBytes;
  if (type == CU_MEMORYTYPE_ARRAY) {
    return end <= array->base + array->bytes() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (type == CU_MEMORYTYPE_DEVICE) {
    return is_known_memory(side.base, end - side.base) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  return may_touch(side.base, end - side.base) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool type_valid(CUmemorytype type, CUarray array) {
  if (type == CU_MEMORYTYPE_ARRAY) return is_array(array);
  return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

bool empty(const CUDA_MEMCPY3D& params) {
  return params.WidthInBytes == 0 || params.Height == 0 || params.Depth == 0;
}

}  // namespace

uint64_t copied_bytes(const CUDA_MEMCPY3D& params) {
  return uint64_t{params.WidthInBytes} * params.Height * params.Depth;
}

CUresult check_copy(const CUDA_MEMCPY3D& params) {
  if (!type_valid(params.srcMemoryType, params.srcArray) ||
      !type_valid(params.dstMemoryType, params.dstArray)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (empty(params)) return CUDA_SUCCESS;
  if (CUresult error = check_side(params.srcMemoryType, params.srcArray, source(params), params))
    return error;
  return check_side(params.dstMemoryType, params.dstArray, destination(params), params);
}

void copy_memory(const CUDA_MEMCPY3D& params) {
  if (empty(params)) return;
  const Side from = source(params);
  const Side to = destination(params);
  if (from.pitch == params.WidthInBytes && to.pitch == params.WidthInBytes && params.Depth == 1) {
    memmove(to.row(0, 0), from.row(0, 0), params.WidthInBytes * params.Height);
    return;
  }
  for (size_t z = 0; z < params.Depth; ++z) {
    for (size_t y = 0; y < params.Height; ++y) memmove(to.row(y, z), from.row(y, z), params.WidthInBytes);
  }
}

uint64_t set_bytes(const CUDA_MEMSET_NODE_PARAMS_v2& params) {
  return uint64_t{params.width} * params.elementSize * std::max<size_t>(params.height, 1);
}

void set_memory(const CUDA_MEMSET_NODE_PARAMS_v2& params) {
  for (size_t y = 0; y < std::max<size_t>(params.height, 1); ++y) {
    void* row = reinterpret_cast<void*>(params.dst + y * params.pitch);
    if (params.elementSize == 1) {
      memset(row, static_cast<int>(params.value), params.width);
    } else if (params.elementSize == 2) {
      std::fill_n(static_cast<uint16_t*>(row), params.width, static_cast<uint16_t>(params.value));
    } else {
      std::fill_n(static_cast<uint32_t*>(row), params.width, params.value);
    }
  }
}

}  // namespace sim
