// SPDX-License-Identifier: Apache-2.0
#include "interpose/array_size.h"

#include <algorithm>

namespace hook {
namespace {

struct Extent {
  uint64_t width;
  uint64_t height;  // 0: one-dimensional
  uint64_t depth;   // 0: two-dimensional; of layered arrays and cubemaps the layers
};

// Bits of a texel with all its channels. A format that the headers do not know yet is taken for 32 bits a
// channel.
uint64_t texel_bits(CUarray_format format, uint64_t channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X4:
      return 8 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X4:
      return 16 * channels;
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
      return 4;
    case CU_AD_FORMAT_BC2_UNORM:
    case CU_AD_FORMAT_BC2_UNORM_SRGB:
    case CU_AD_FORMAT_BC3_UNORM:
    case CU_AD_FORMAT_BC3_UNORM_SRGB:
    case CU_AD_FORMAT_BC5_UNORM:
    case CU_AD_FORMAT_BC5_SNORM:
    case CU_AD_FORMAT_BC6H_UF16:
    case CU_AD_FORMAT_BC6H_SF16:
    case CU_AD_FORMAT_BC7_UNORM:
    case CU_AD_FORMAT_BC7_UNORM_SRGB:
      return 8;
    case CU_AD_FORMAT_NV12:
    case CU_AD_FORMAT_UINT8_SEMIPLANAR_420:
    case CU_AD_FORMAT_UINT8_PLANAR_420:
      return 12;
    case CU_AD_FORMAT_NV16:
    case CU_AD_FORMAT_YUY2:
    case CU_AD_FORMAT_UINT8_PACKED_422:
    case CU_AD_FORMAT_UINT8_SEMIPLANAR_422:
    case CU_AD_FORMAT_UINT8_PLANAR_422:
      return 16;
    case CU_AD_FORMAT_P010:
    case CU_AD_FORMAT_P016:
    case CU_AD_FORMAT_UINT16_SEMIPLANAR_420:
    case CU_AD_FORMAT_UINT16_PLANAR_420:
    case CU_AD_FORMAT_Y444_PLANAR8:
    case CU_AD_FORMAT_YUV444_8bit_SemiPlanar:
    case CU_AD_FORMAT_UINT8_SEMIPLANAR_444:
    case CU_AD_FORMAT_UINT8_PLANAR_444:
      return 24;
    case CU_AD_FORMAT_P210:
    case CU_AD_FORMAT_P216:
    case CU_AD_FORMAT_Y210:
    case CU_AD_FORMAT_Y216:
    case CU_AD_FORMAT_AYUV:
    case CU_AD_FORMAT_Y410:
    case CU_AD_FORMAT_UINT8_PACKED_444:
    case CU_AD_FORMAT_UINT16_SEMIPLANAR_422:
    case CU_AD_FORMAT_UINT16_PLANAR_422:
    case CU_AD_FORMAT_UNORM_INT_101010_2:
      return 32;
    case CU_AD_FORMAT_Y444_PLANAR10:
    case CU_AD_FORMAT_YUV444_16bit_SemiPlanar:
    case CU_AD_FORMAT_UINT16_SEMIPLANAR_444:
    case CU_AD_FORMAT_UINT16_PLANAR_444:
      return 48;
    case CU_AD_FORMAT_Y416:
      return 64;
    default:
      return 32 * channels;
  }
}

// Block-compressed formats take whole blocks of 4 x 4 texels.
bool is_block_compressed(CUarray_format format) {
  return format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB;
}

// ~0 where it is more than any GPU has.
uint64_t bytes_of(Extent extent, CUarray_format format, uint64_t channels) {
  extent.height = std::max<uint64_t>(extent.height, 1);
  extent.depth = std::max<uint64_t>(extent.depth, 1);
  if (is_block_compressed(format)) {
    extent.width = (extent.width + 3) & ~uint64_t{3};
    extent.height = (extent.height + 3) & ~uint64_t{3};
  }
  uint64_t bits;
  if (__builtin_mul_overflow(extent.width, extent.height, &bits) ||
      __builtin_mul_overflow(bits, extent.depth, &bits) ||
      __builtin_mul_overflow(bits, texel_bits(format, channels), &bits)) {
    return ~uint64_t{0};
  }
  return bits / 8 + (bits % 8 != 0);
}

// Sparse arrays and those mapped later are backed by cuMemCreate's memory, which is charged there.
bool has_own_memory(unsigned int flags) {
  return (flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

template <typename Descriptor>
uint64_t bytes_of_2d(const Descriptor* array) {
  if (array == nullptr) return 0;
  return bytes_of({array->Width, array->Height, 0}, array->Format, array->NumChannels);
}

template <typename Descriptor>
uint64_t bytes_of_3d(const Descriptor* array) {
  if (array == nullptr || !has_own_memory(array->Flags)) return 0;
  return bytes_of({array->Width, array->Height, array->Depth}, array->Format, array->NumChannels);
}

}  // namespace

uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR_v1* array) { return bytes_of_2d(array); }
uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR* array) { return bytes_of_2d(array); }
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v1* array) { return bytes_of_3d(array); }
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR* array) { return bytes_of_3d(array); }

uint64_t mipmapped_bytes(const CUDA_ARRAY3D_DESCRIPTOR* base, unsigned int levels) {
  if (base == nullptr || !has_own_memory(base->Flags)) return 0;
  const bool layered = (base->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  Extent extent = {base->Width, base->Height, base->Depth};
  uint64_t sum = 0;
  for (unsigned int level = 0; level < std::max(levels, 1u); level++) {
    const uint64_t bytes = bytes_of(extent, base->Format, base->NumChannels);
    if (__builtin_add_overflow(sum, bytes, &sum)) return ~uint64_t{0};
    if (extent.width <= 1 && extent.height <= 1 && (layered || extent.depth <= 1)) break;
    extent.width = std::max<uint64_t>(extent.width / 2, 1);
    if (extent.height != 0) extent.height = std::max<uint64_t>(extent.height / 2, 1);
    if (extent.depth != 0 && !layered) extent.depth = std::max<uint64_t>(extent.depth / 2, 1);
  }
  return sum;
}

}  // namespace hook
