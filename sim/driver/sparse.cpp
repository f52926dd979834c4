// SPDX-License-Identifier: Apache-2.0
//
// Arrays that are made without memory and get it by cuMemMapArrayAsync, tile by tile (sparse) or whole
// (deferred). Their contents lie at the array's own addresses whatever is mapped; what is simulated is which
// handle's memory they keep.
#include <array>

#include "sim/driver/arena.h"
#include "sim/driver/arrays.h"
#include "sim/driver/memory.h"
#include "sim/driver/stream.h"
#include "sim/driver/vmm.h"

namespace sim {
namespace {

constexpr uint64_t kTileBytes = 64 << 10;

struct Extent {
  unsigned width, height, depth;
};

// The standard shapes of a tile of 64 KiB, by the size of an element.
Extent tile_of(const CUarray_st& array) {
  const bool solid = array.descriptor.Depth > 0 && (array.descriptor.Flags & CUDA_ARRAY3D_LAYERED) == 0;
  constexpr Extent kFlat[] = {{256, 256, 1}, {256, 128, 1}, {128, 128, 1}, {128, 64, 1}, {64, 64, 1}};
  constexpr Extent kSolid[] = {{64, 32, 32}, {32, 32, 32}, {32, 32, 16}, {32, 16, 16}, {16, 16, 16}};
  const size_t element = array.row_bytes / array.descriptor.Width;
  size_t log = 0;
  while ((size_t{1} << log) < element && log < 4) ++log;
  return (solid ? kSolid : kFlat)[log];
}

bool is_sparse(const CUarray_st& array) { return (array.descriptor.Flags & CUDA_ARRAY3D_SPARSE) != 0; }

bool fits_tile(const CUarray_st& array) {
  const Extent tile = tile_of(array);
  return array.descriptor.Width >= tile.width && array.rows() >= tile.height;
}

// The first level smaller than a tile: it and those below it share the tail.
unsigned first_tail_level(const CUmipmappedArray_st& mipmap) {
  unsigned level = 0;
  while (level < mipmap.levels.size() && fits_tile(mipmap.levels[level])) ++level;
  return level;
}

CUresult properties(const CUarray_st& array, unsigned first_tail, uint64_t tail_bytes,
                    CUDA_ARRAY_SPARSE_PROPERTIES* out) {
  if (out == nullptr || !is_sparse(array)) return CUDA_ERROR_INVALID_VALUE;
  const Extent tile = tile_of(array);
  *out = {};
  out->tileExtent = {tile.width, tile.height, tile.depth};
  out->miptailFirstLevel = first_tail;
  out->miptailSize = round_up(tail_bytes, kTileBytes);
  return CUDA_SUCCESS;
}

// Which array of the resource is meant.
CUarray_st* array_of(const CUarrayMapInfo& info) {
  if (info.resourceType == CU_RESOURCE_TYPE_ARRAY) {
    return is_array(info.resource.array) ? info.resource.array : nullptr;
  }
  if (info.resourceType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY || info.resource.mipmap == nullptr)
    return nullptr;
  auto& levels = info.resource.mipmap->levels;
  const bool tail = info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
  const size_t level = tail ? first_tail_level(*info.resource.mipmap) : info.subresource.sparseLevel.level;
  return level < levels.size() ? &levels[level] : nullptr;
}

// Where in the array, and how many bytes of memory that takes. False: not on tiles.
bool place_of(const CUarrayMapInfo& info, const CUarray_st& array, std::array<uint64_t, 5>* place,
              uint64_t* bytes) {
  if (!is_sparse(array)) {
    *place = {};
    *bytes = array.bytes();
    return true;
  }
  if (info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    const auto& tail = info.subresource.miptail;
    *place = {1, tail.layer, tail.offset, 0, 0};
    *bytes = tail.size;
    return tail.size != 0 && tail.offset % kTileBytes == 0;
  }
  const auto& part = info.subresource.sparseLevel;
  const Extent tile = tile_of(array);
  *place = {0, part.layer, part.offsetX, part.offsetY, part.offsetZ};
  if (part.offsetX % tile.width != 0 || part.offsetY % tile.height != 0 || part.offsetZ % tile.depth != 0 ||
      part.offsetX + uint64_t{part.extentWidth} > round_up(array.descriptor.Width, tile.width) ||
      part.offsetY + uint64_t{part.extentHeight} > round_up(array.rows(), tile.height)) {
    return false;
  }
  const auto tiles = [](uint64_t extent, unsigned of_tile) { return (extent + of_tile - 1) / of_tile; };
  *bytes = tiles(part.extentWidth, tile.width) * tiles(part.extentHeight, tile.height) *
           tiles(part.extentDepth, tile.depth) * kTileBytes;
  return *bytes != 0;
}

// Precondition: mutex held.
CUresult change(Vmm& v, const CUarrayMapInfo& info) {
  CUarray_st* array = array_of(info);
  if (array == nullptr || !is_mapped_later(array->descriptor) || info.flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::array<uint64_t, 5> place;
  uint64_t bytes;
  if (!place_of(info, *array, &place, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = array->mapped.find(place);
  if (info.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
    if (mapped == array->mapped.end()) return CUDA_SUCCESS;
    const uint64_t handle = mapped->second;
    array->mapped.erase(mapped);
    let_memory_go(v, handle);
    return CUDA_SUCCESS;
  }
  Memory* memory = find_memory(v, info.memHandle.memHandle);
  if (info.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC || memory == nullptr || info.deviceBitMask == 0 ||
      info.offset > memory->bytes || bytes > memory->bytes - info.offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((memory->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) == 0 && is_sparse(*array)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++memory->mappings;
  const uint64_t before = mapped != array->mapped.end() ? mapped->second : 0;
  array->mapped[place] = info.memHandle.memHandle;
  if (before != 0) let_memory_go(v, before);
  return CUDA_SUCCESS;
}

}  // namespace

void unmap_array(CUarray_st* array) {
  Vmm& v = vmm();
  std::lock_guard lock(v.mutex);
  for (const auto& [place, handle] : array->mapped) let_memory_go(v, handle);
  array->mapped.clear();
}

}  // namespace sim

SIM_API(cuArrayGetSparseProperties)(CUDA_ARRAY_SPARSE_PROPERTIES* out, CUarray array) {
  if (CUresult error = sim::ready()) return error;
  if (!sim::is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
  const bool fits = sim::fits_tile(*array);
  return sim::properties(*array, fits ? 1 : 0, fits ? 0 : array->bytes(), out);
}

SIM_API(cuMipmappedArrayGetSparseProperties)(CUDA_ARRAY_SPARSE_PROPERTIES* out, CUmipmappedArray mipmap) {
  if (CUresult error = sim::ready()) return error;
  if (mipmap == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const unsigned tail = sim::first_tail_level(*mipmap);
  uint64_t tail_bytes = 0;
  for (size_t level = tail; level < mipmap->levels.size(); ++level)
    tail_bytes += mipmap->levels[level].bytes();
  return sim::properties(mipmap->levels[0], tail, tail_bytes, out);
}

// Takes effect at once, not in the stream's order: nothing but the program's own frees could tell.
SIM_API(cuMemMapArrayAsync)(CUarrayMapInfo* infos, unsigned count, CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (infos == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  for (unsigned i = 0; i < count; ++i) {
    if (CUresult error = sim::change(v, infos[i])) return error;
  }
  return CUDA_SUCCESS;
}
