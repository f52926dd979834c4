// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstring>
#include <vector>

#include "driver_fixture.h"

using Memory = Driver;

TEST_F(Memory, small_allocations_share_a_granule) {
  const size_t before = free_bytes();
  CUdeviceptr first, second;
  ASSERT_OK(cuMemAlloc_v2(&first, 1000));
  ASSERT_OK(cuMemAlloc_v2(&second, 1000));
  EXPECT_EQ(before - free_bytes(), kGranule);
  EXPECT_EQ(first % 256, 0u);
  EXPECT_OK(cuMemFree_v2(first));
  EXPECT_EQ(before - free_bytes(), kGranule);
  EXPECT_OK(cuMemFree_v2(second));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Memory, large_allocations_take_whole_granules) {
  const size_t before = free_bytes();
  CUdeviceptr memory;
  ASSERT_OK(cuMemAlloc_v2(&memory, 5 * kMiB));
  EXPECT_EQ(before - free_bytes(), 3 * kGranule);
  EXPECT_OK(cuMemFree_v2(memory));
}

TEST_F(Memory, a_full_device_refuses_and_what_is_freed_can_be_taken_again) {
  const size_t before = free_bytes();
  std::vector<CUdeviceptr> taken;
  CUdeviceptr memory;
  CUresult result;
  while ((result = cuMemAlloc_v2(&memory, 1024 * kMiB)) == CUDA_SUCCESS) taken.push_back(memory);
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(taken.size(), before / (1024 * kMiB));
  ASSERT_OK(cuMemFree_v2(taken.back()));
  EXPECT_OK(cuMemAlloc_v2(&taken.back(), 1024 * kMiB));
  for (CUdeviceptr address : taken) EXPECT_OK(cuMemFree_v2(address));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Memory, a_pointer_is_freed_once) {
  CUdeviceptr memory;
  ASSERT_OK(cuMemAlloc_v2(&memory, 100));
  EXPECT_OK(cuMemFree_v2(memory));
  EXPECT_EQ(cuMemFree_v2(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8_v2(memory, 0, 100), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Memory, copies_past_the_end_are_refused) {
  CUdeviceptr memory;
  char host[200] = {};
  ASSERT_OK(cuMemAlloc_v2(&memory, 100));
  EXPECT_OK(cuMemcpyHtoD_v2(memory, host, 100));
  EXPECT_EQ(cuMemcpyHtoD_v2(memory, host, 101), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Memory, the_end_of_a_context_gives_everything_back) {
  CUcontext own;
  const size_t before = free_bytes();
  ASSERT_OK(cuCtxCreate_v2(&own, 0, device_));
  EXPECT_LT(free_bytes(), before);  // a context costs memory itself
  CUdeviceptr memory;
  ASSERT_OK(cuMemAlloc_v2(&memory, 100 * kMiB));
  ASSERT_OK(cuMemAlloc_v2(&memory, 100));
  ASSERT_OK(cuCtxDestroy_v2(own));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Memory, pointer_attributes_tell_the_kinds_apart) {
  CUdeviceptr device_memory, managed;
  void* pinned;
  int ordinary = 0;
  ASSERT_OK(cuMemAlloc_v2(&device_memory, 4096));
  ASSERT_OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  ASSERT_OK(cuMemHostAlloc(&pinned, 4096, 0));
  CUmemorytype type;
  EXPECT_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device_memory));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  EXPECT_OK(
      cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(pinned)));
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  // cudart reads four bytes.
  int is_managed = -1;
  EXPECT_OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
  EXPECT_EQ(is_managed, 1);
  is_managed = -1;
  EXPECT_OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, device_memory));
  EXPECT_EQ(is_managed, 0);
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(&ordinary)),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Memory, arrays_and_mipmaps_take_memory) {
  const size_t before = free_bytes();
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = 4096;
  shape.Height = 1024;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  CUarray array;
  CUmipmappedArray mipmap;
  ASSERT_OK(cuArray3DCreate_v2(&array, &shape));
  EXPECT_EQ(before - free_bytes(), 16 * kMiB);
  ASSERT_OK(cuMipmappedArrayCreate(&mipmap, &shape, 3));
  EXPECT_EQ(before - free_bytes(), 16 * kMiB + 22 * kMiB);
  EXPECT_OK(cuMipmappedArrayDestroy(mipmap));
  EXPECT_OK(cuArrayDestroy(array));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Memory, a_pool_reserves_chunks_and_gives_them_back_at_synchronisation) {
  CUmemoryPool pool;
  ASSERT_OK(cuDeviceGetDefaultMemPool(&pool, device_));
  CUstream stream = make_stream();
  const size_t before = free_bytes();
  CUdeviceptr memory;
  ASSERT_OK(cuMemAllocAsync(&memory, 1000, stream));
  cuuint64_t reserved, used;
  ASSERT_OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
  ASSERT_OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(reserved, 32 * kMiB);
  EXPECT_GE(used, 1000u);
  EXPECT_EQ(before - free_bytes(), 32 * kMiB);
  ASSERT_OK(cuMemFreeAsync(memory, stream));
  EXPECT_EQ(before - free_bytes(), 32 * kMiB);
  ASSERT_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Memory, a_pool_keeps_up_to_its_threshold_until_the_device_is_full) {
  CUmemoryPool pool;
  ASSERT_OK(cuDeviceGetDefaultMemPool(&pool, device_));
  cuuint64_t threshold = UINT64_MAX;
  ASSERT_OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CUstream stream = make_stream();
  const size_t before = free_bytes();
  CUdeviceptr memory;
  ASSERT_OK(cuMemAllocAsync(&memory, 1024 * kMiB, stream));
  ASSERT_OK(cuMemFreeAsync(memory, stream));
  ASSERT_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(before - free_bytes(), 1024 * kMiB);
  ASSERT_OK(cuMemAlloc_v2(&memory, before / kGranule * kGranule));  // needs what the pool holds
  EXPECT_OK(cuMemFree_v2(memory));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Memory, a_pool_takes_the_last_granules_of_a_device) {
  CUstream stream = make_stream();
  CUdeviceptr most, memory;
  ASSERT_OK(cuMemAlloc_v2(&most, (free_bytes() - 8 * kMiB) / kGranule * kGranule));
  EXPECT_OK(cuMemAllocAsync(&memory, 5 * kMiB, stream));
  EXPECT_EQ(cuMemAllocAsync(&memory, 5 * kMiB, stream), CUDA_ERROR_OUT_OF_MEMORY);
}

class Vmm : public Driver {
 protected:
  CUmemGenericAllocationHandle create(size_t bytes,
                                      CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE) {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    prop.requestedHandleTypes = type;
    EXPECT_OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
  }

  CUresult give_access(CUdeviceptr address, size_t bytes) {
    CUmemAccessDesc access = {};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cuMemSetAccess(address, bytes, &access, 1);
  }
};

TEST_F(Vmm, memory_counts_from_create_until_nothing_refers_to_it) {
  const size_t before = free_bytes();
  const auto handle = create(20 * kMiB);
  EXPECT_EQ(before - free_bytes(), 20 * kMiB);
  CUdeviceptr range;
  ASSERT_OK(cuMemAddressReserve(&range, 100 * kMiB, 0, 0, 0));
  ASSERT_OK(cuMemMap(range, 20 * kMiB, 0, handle, 0));
  ASSERT_OK(cuMemRelease(handle));
  EXPECT_EQ(before - free_bytes(), 20 * kMiB);
  EXPECT_EQ(cuMemAddressFree(range, 100 * kMiB), CUDA_ERROR_INVALID_VALUE);
  ASSERT_OK(cuMemUnmap(range, 20 * kMiB));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_OK(cuMemAddressFree(range, 100 * kMiB));
}

TEST_F(Vmm, a_mapping_needs_access_and_two_mappings_show_the_same_memory) {
  const auto handle = create(kGranule);
  CUdeviceptr range;
  ASSERT_OK(cuMemAddressReserve(&range, 2 * kGranule, 0, 0, 0));
  ASSERT_OK(cuMemMap(range, kGranule, 0, handle, 0));
  ASSERT_OK(cuMemMap(range + kGranule, kGranule, 0, handle, 0));
  EXPECT_EQ(cuMemsetD8_v2(range, 1, 16), CUDA_ERROR_INVALID_VALUE);
  ASSERT_OK(give_access(range, 2 * kGranule));
  ASSERT_OK(cuMemsetD8_v2(range, 7, 16));
  unsigned char seen[16] = {};
  ASSERT_OK(cuMemcpyDtoH_v2(seen, range + kGranule, 16));
  EXPECT_EQ(seen[15], 7);
}

TEST_F(Vmm, an_exported_handle_shows_the_same_memory) {
  const auto handle = create(kGranule, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  int fd = -1;
  ASSERT_OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle imported;
  ASSERT_OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  CUdeviceptr range;
  ASSERT_OK(cuMemAddressReserve(&range, 2 * kGranule, 0, 0, 0));
  ASSERT_OK(cuMemMap(range, kGranule, 0, handle, 0));
  ASSERT_OK(cuMemMap(range + kGranule, kGranule, 0, imported, 0));
  ASSERT_OK(give_access(range, 2 * kGranule));
  ASSERT_OK(cuMemsetD8_v2(range, 9, kGranule));
  unsigned char seen = 0;
  ASSERT_OK(cuMemcpyDtoH_v2(&seen, range + 2 * kGranule - 1, 1));
  EXPECT_EQ(seen, 9);
}

TEST_F(Vmm, fabric_handles_are_not_supported) {
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(cuMemCreate(&handle, kGranule, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
}
