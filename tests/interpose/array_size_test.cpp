// SPDX-License-Identifier: Apache-2.0
#include "interpose/array_size.h"

#include <gtest/gtest.h>

namespace {

CUDA_ARRAY3D_DESCRIPTOR array(size_t width, size_t height, size_t depth, CUarray_format format,
                              unsigned channels, unsigned flags = 0) {
  return {width, height, depth, format, channels, flags};
}

uint64_t bytes(const CUDA_ARRAY3D_DESCRIPTOR& array) { return hook::array_bytes(&array); }

TEST(ArraySize, is_texels_by_channels_by_format) {
  EXPECT_EQ(bytes(array(100, 0, 0, CU_AD_FORMAT_FLOAT, 1)), 400u);
  EXPECT_EQ(bytes(array(100, 10, 0, CU_AD_FORMAT_HALF, 4)), 8'000u);
  EXPECT_EQ(bytes(array(100, 10, 3, CU_AD_FORMAT_UNSIGNED_INT8, 2)), 6'000u);
  EXPECT_EQ(bytes(array(16, 16, 0, CU_AD_FORMAT_UNORM_INT16X4, 4)), 16u * 16 * 8);
}

TEST(ArraySize, counts_whole_blocks_of_compressed_formats) {
  EXPECT_EQ(bytes(array(16, 16, 0, CU_AD_FORMAT_BC1_UNORM, 4)), 16u * 16 / 2);
  EXPECT_EQ(bytes(array(17, 17, 0, CU_AD_FORMAT_BC7_UNORM, 4)), 20u * 20);
}

TEST(ArraySize, knows_subsampled_formats) {
  EXPECT_EQ(bytes(array(64, 64, 0, CU_AD_FORMAT_NV12, 3)), 64u * 64 * 3 / 2);
}

TEST(ArraySize, is_nothing_without_memory_of_its_own) {
  EXPECT_EQ(bytes(array(64, 64, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE)), 0u);
  EXPECT_EQ(bytes(array(64, 64, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING)), 0u);
  EXPECT_EQ(hook::array_bytes(static_cast<const CUDA_ARRAY3D_DESCRIPTOR*>(nullptr)), 0u);
}

TEST(ArraySize, saturates) {
  EXPECT_EQ(bytes(array(size_t{1} << 40, size_t{1} << 40, 2, CU_AD_FORMAT_FLOAT, 4)), ~uint64_t{0});
}

TEST(ArraySize, halves_every_level_of_a_mipmap_but_not_its_layers) {
  const auto flat = array(8, 8, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1);
  EXPECT_EQ(hook::mipmapped_bytes(&flat, 1), 64u);
  EXPECT_EQ(hook::mipmapped_bytes(&flat, 4), 64u + 16 + 4 + 1);
  EXPECT_EQ(hook::mipmapped_bytes(&flat, 99), 64u + 16 + 4 + 1);
  const auto layered = array(8, 8, 3, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED);
  EXPECT_EQ(hook::mipmapped_bytes(&layered, 2), 3u * (64 + 16));
  const auto solid = array(8, 8, 8, CU_AD_FORMAT_UNSIGNED_INT8, 1);
  EXPECT_EQ(hook::mipmapped_bytes(&solid, 2), 512u + 64);
}

}  // namespace
