// SPDX-License-Identifier: Apache-2.0
//
// The parts of the simulated driver that need no driver.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "sim/driver/block_heap.h"
#include "sim/driver/image.h"

TEST(BlockHeap, neighbours_merge_but_not_across_blocks) {
  sim::BlockHeap heap;
  heap.add_block({1000, 100});
  heap.add_block({1100, 100});  // begins where the first ends
  EXPECT_EQ(heap.allocate(150), 0u);
  const uint64_t a = heap.allocate(60);
  const uint64_t b = heap.allocate(40);
  EXPECT_EQ(b, a + 60);
  EXPECT_FALSE(heap.release(a, 60));
  EXPECT_TRUE(heap.release(b, 40));
  EXPECT_EQ(heap.free_blocks().size(), 2u);
  EXPECT_EQ(heap.allocate(150), 0u);
}

TEST(BlockHeap, the_smallest_piece_that_fits_is_taken) {
  sim::BlockHeap heap;
  heap.add_block({1000, 50});
  heap.add_block({2000, 20});
  EXPECT_EQ(heap.allocate(20), 2000u);
  heap.release(2000, 20);
  heap.remove_block(2000);
  EXPECT_EQ(heap.allocate(20), 1000u);
}

TEST(Image, the_kernels_of_ptx_are_its_entries) {
  sim::Image image;
  const std::string ptx =
      ".version 8.0\n.target sm_90\n.visible .entry first(\n.param .u64 a)\n{ret;}\n.entry second{ret;}";
  ASSERT_TRUE(sim::read_image(ptx.c_str(), &image));
  EXPECT_TRUE(image.kernels_known);
  EXPECT_FALSE(image.variables_known);
  EXPECT_EQ(image.kernels.count("first"), 1u);
  EXPECT_EQ(image.kernels.count("second"), 1u);
}

TEST(Image, something_else_is_refused) {
  sim::Image image;
  EXPECT_FALSE(sim::read_image("certainly not an image, but long enough to look at", &image));
}
