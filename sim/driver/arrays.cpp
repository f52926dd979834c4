// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/arrays.h"

#include "sim/driver/capture.h"
#include "sim/driver/memory.h"

namespace sim {
namespace {

size_t format_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

// False: a shape or a format that cannot be.
bool shape(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, CUarray_st* array) {
  const size_t element = format_bytes(descriptor.Format) * descriptor.NumChannels;
  const unsigned channels = descriptor.NumChannels;
  if (element == 0 || descriptor.Width == 0 || (channels != 1 && channels != 2 && channels != 4))
    return false;
  array->descriptor = descriptor;
  array->row_bytes = descriptor.Width * element;
  return array->row_bytes < (1ull << 40) && array->rows() < (1ull << 20) && array->layers() < (1ull << 20);
}

CUresult allocate(CUctx_st* context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, size_t bytes,
                  CUdeviceptr* base) {
  // Addresses only: the memory comes with cuMemMapArrayAsync.
  if (is_mapped_later(descriptor)) return reserve_module_memory(context, bytes, base);
  return allocate_device_memory(context, bytes, Allocation::Kind::kDevice, base);
}

// Lays the levels out one behind the other, from 0 on. False: a shape that cannot be.
bool lay_out(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned level_count, CUmipmappedArray_st* mipmap,
             size_t* bytes) {
  *bytes = 0;
  CUDA_ARRAY3D_DESCRIPTOR level = descriptor;
  for (unsigned i = 0; i < level_count; ++i) {
    CUarray_st array{};
    if (!shape(level, &array)) return false;
    array.base = *bytes;
    *bytes += array.bytes();
    mipmap->levels.push_back(array);
    if (level.Width == 1 && level.Height <= 1 && level.Depth <= 1) break;  // the driver clamps the count
    level.Width = std::max<size_t>(level.Width / 2, 1);
    if (level.Height > 1) level.Height /= 2;
    if (level.Depth > 1 && (level.Flags & CUDA_ARRAY3D_LAYERED) == 0) level.Depth /= 2;
  }
  return true;
}

void place(CUmipmappedArray_st* mipmap, uint64_t base) {
  mipmap->base = base;
  for (CUarray_st& array : mipmap->levels) array.base += base;
}

CUresult create(CUarray* result, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  CUctx_st* context;
  if (CUresult error = current_context(&context)) return error;
  if (CUresult error = refuse_during_capture()) return error;
  auto array = std::make_unique<CUarray_st>();
  if (!shape(descriptor, array.get())) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr base;
  if (CUresult error = allocate(context, descriptor, array->bytes(), &base)) return error;
  array->base = base;
  array->owns_memory = true;
  *result = array.release();
  return CUDA_SUCCESS;
}

void free_memory(uint64_t base) {
  if (const auto allocation = forget(base)) release_allocation(*allocation);
}

void describe_memory(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements, size_t bytes) {
  *requirements = {};
  requirements->size = bytes;
  requirements->alignment = 512;
}

}  // namespace

CUresult mipmap_in(CUmipmappedArray* result, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned level_count,
                   uint64_t base, uint64_t room_bytes, std::shared_ptr<const void> keeps) {
  auto mipmap = std::make_unique<CUmipmappedArray_st>();
  size_t bytes;
  if (level_count == 0 || !lay_out(descriptor, level_count, mipmap.get(), &bytes) || bytes > room_bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  place(mipmap.get(), base);
  mipmap->keeps = std::move(keeps);
  *result = mipmap.release();
  return CUDA_SUCCESS;
}

bool is_array(CUarray array) { return array != nullptr && array->magic == CUarray_st::kMagic; }

}  // namespace sim

SIM_API(cuArrayCreate_v2)(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  if (array == nullptr || descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::create(
      array, {descriptor->Width, descriptor->Height, 0, descriptor->Format, descriptor->NumChannels, 0});
}

SIM_API(cuArray3DCreate_v2)(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  if (array == nullptr || descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::create(array, *descriptor);
}

SIM_API(cuArrayDestroy)(CUarray array) {
  if (CUresult error = sim::ready()) return error;
  if (!sim::is_array(array) || !array->owns_memory) return CUDA_ERROR_INVALID_HANDLE;
  sim::unmap_array(array);
  sim::free_memory(array->base);
  array->magic = 0;
  delete array;
  return CUDA_SUCCESS;
}

SIM_API(cuArrayGetDescriptor_v2)(CUDA_ARRAY_DESCRIPTOR* descriptor, CUarray array) {
  if (!sim::is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *descriptor = {array->descriptor.Width, array->descriptor.Height, array->descriptor.Format,
                 array->descriptor.NumChannels};
  return CUDA_SUCCESS;
}

SIM_API(cuArray3DGetDescriptor_v2)(CUDA_ARRAY3D_DESCRIPTOR* descriptor, CUarray array) {
  if (!sim::is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *descriptor = array->descriptor;
  return CUDA_SUCCESS;
}

SIM_API(cuArrayGetMemoryRequirements)(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements, CUarray array, CUdevice) {
  if (!sim::is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
  if (requirements == nullptr) return CUDA_ERROR_INVALID_VALUE;
  sim::describe_memory(requirements, array->bytes());
  return CUDA_SUCCESS;
}

SIM_API(cuMipmappedArrayCreate)
(CUmipmappedArray* result, const CUDA_ARRAY3D_DESCRIPTOR* descriptor, unsigned level_count) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (result == nullptr || descriptor == nullptr || level_count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = sim::refuse_during_capture()) return error;
  auto mipmap = std::make_unique<CUmipmappedArray_st>();
  size_t bytes;
  if (!sim::lay_out(*descriptor, level_count, mipmap.get(), &bytes)) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr base;
  if (CUresult error = sim::allocate(context, *descriptor, bytes, &base)) return error;
  sim::place(mipmap.get(), base);
  *result = mipmap.release();
  return CUDA_SUCCESS;
}

SIM_API(cuMipmappedArrayDestroy)(CUmipmappedArray mipmap) {
  if (CUresult error = sim::ready()) return error;
  if (mipmap == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (CUarray_st& level : mipmap->levels) sim::unmap_array(&level);
  if (mipmap->keeps == nullptr) sim::free_memory(mipmap->base);
  delete mipmap;
  return CUDA_SUCCESS;
}

SIM_API(cuMipmappedArrayGetLevel)(CUarray* array, CUmipmappedArray mipmap, unsigned level) {
  if (mipmap == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (array == nullptr || level >= mipmap->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *array = &mipmap->levels[level];
  return CUDA_SUCCESS;
}

SIM_API(cuMipmappedArrayGetMemoryRequirements)
(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements, CUmipmappedArray mipmap, CUdevice) {
  if (mipmap == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (requirements == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUarray_st& last = mipmap->levels.back();
  sim::describe_memory(requirements, last.base + last.bytes() - mipmap->base);
  return CUDA_SUCCESS;
}

// Texture and surface objects are handles that kernels would read through; nothing reads them here.
namespace {
std::atomic<CUtexObject> next_object{1};
}

SIM_API(cuTexObjectCreate)
(CUtexObject* object, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC*,
 const CUDA_RESOURCE_VIEW_DESC*) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (object == nullptr || resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *object = next_object++;
  return CUDA_SUCCESS;
}
SIM_API(cuTexObjectDestroy)(CUtexObject) { return sim::ready(); }
SIM_API(cuSurfObjectCreate)(CUsurfObject* object, const CUDA_RESOURCE_DESC* resource) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (object == nullptr || resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *object = next_object++;
  return CUDA_SUCCESS;
}
SIM_API(cuSurfObjectDestroy)(CUsurfObject) { return sim::ready(); }

// A tensor map describes memory to a kernel's copy engine; it is opaque, and nothing reads it here.
SIM_API(cuTensorMapEncodeTiled)
(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* address, const cuuint64_t*, const cuuint64_t*,
 const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
 CUtensorMapFloatOOBfill) {
  if (map == nullptr || address == nullptr || rank == 0 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  *map = {};
  map->opaque[0] = reinterpret_cast<cuuint64_t>(address);
  return CUDA_SUCCESS;
}
SIM_API(cuTensorMapReplaceAddress)(CUtensorMap* map, void* address) {
  if (map == nullptr || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  map->opaque[0] = reinterpret_cast<cuuint64_t>(address);
  return CUDA_SUCCESS;
}
