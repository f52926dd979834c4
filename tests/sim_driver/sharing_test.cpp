// SPDX-License-Identifier: Apache-2.0
//
// Memory that is somebody else's too: external memory and semaphores, multicast objects, sparse arrays.
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "driver_fixture.h"

namespace {

class Sharing : public Driver {
 protected:
  CUmemGenericAllocationHandle create(size_t bytes, bool tiles = false) {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (tiles) prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    EXPECT_OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
  }

  // As a graphics API would hand memory out.
  static int graphics_memory(size_t bytes) {
    const int fd = memfd_create("graphics", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    return fd;
  }
};

TEST_F(Sharing, external_memory_is_mapped_and_takes_nothing_of_the_device) {
  const size_t before = free_bytes();
  const int fd = graphics_memory(8 * kMiB);
  const int kept = dup(fd);
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {};
  desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  desc.handle.fd = fd;
  desc.size = 16 * kMiB;
  CUexternalMemory memory;
  EXPECT_EQ(cuImportExternalMemory(&memory, &desc), CUDA_ERROR_INVALID_HANDLE);  // more than there is
  desc.size = 8 * kMiB;
  ASSERT_OK(cuImportExternalMemory(&memory, &desc));
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = {};
  part.offset = 4096;
  part.size = 8 * kMiB;
  CUdeviceptr buffer;
  EXPECT_EQ(cuExternalMemoryGetMappedBuffer(&buffer, memory, &part), CUDA_ERROR_INVALID_VALUE);
  part.size = 1 * kMiB;
  ASSERT_OK(cuExternalMemoryGetMappedBuffer(&buffer, memory, &part));
  ASSERT_OK(cuMemsetD8_v2(buffer, 5, kMiB));
  EXPECT_EQ(free_bytes(), before);
  unsigned char seen = 0;
  ASSERT_EQ(pread(kept, &seen, 1, 4096), 1);
  EXPECT_EQ(seen, 5);
  close(kept);

  CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC shape = {};
  shape.arrayDesc = {256, 256, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  shape.numLevels = 3;
  CUmipmappedArray mipmap;
  ASSERT_OK(cuExternalMemoryGetMappedMipmappedArray(&mipmap, memory, &shape));
  ASSERT_OK(cuMipmappedArrayDestroy(mipmap));
  ASSERT_OK(cuMemFree_v2(buffer));
  ASSERT_OK(cuDestroyExternalMemory(memory));
  EXPECT_EQ(cuDestroyExternalMemory(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Sharing, an_exported_handle_can_be_imported_as_external_memory) {
  const auto handle = create(kGranule);
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {};
  desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  ASSERT_OK(
      cuMemExportToShareableHandle(&desc.handle.fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  desc.size = kGranule;
  const size_t before = free_bytes();
  CUexternalMemory memory;
  ASSERT_OK(cuImportExternalMemory(&memory, &desc));
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {};
  whole.size = kGranule;
  CUdeviceptr buffer;
  ASSERT_OK(cuExternalMemoryGetMappedBuffer(&buffer, memory, &whole));
  EXPECT_EQ(free_bytes(), before);
  ASSERT_OK(cuMemsetD8_v2(buffer, 3, 64));
  ASSERT_OK(cuMemFree_v2(buffer));
}

TEST_F(Sharing, semaphores_order_streams_by_a_value_in_a_file) {
  const int fd = graphics_memory(4096);
  CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {};
  desc.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
  desc.handle.fd = fd;
  CUexternalSemaphore timeline;
  ASSERT_OK(cuImportExternalSemaphore(&timeline, &desc));
  CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {};
  wait.params.fence.value = 2;
  CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal = {};
  CUstream waits = make_stream(), signals = make_stream();
  ASSERT_OK(cuWaitExternalSemaphoresAsync(&timeline, &wait, 1, waits));
  signal.params.fence.value = 1;
  ASSERT_OK(cuSignalExternalSemaphoresAsync(&timeline, &signal, 1, signals));
  ASSERT_OK(cuStreamSynchronize(signals));
  usleep(2000);
  EXPECT_EQ(cuStreamQuery(waits), CUDA_ERROR_NOT_READY);
  signal.params.fence.value = 2;
  ASSERT_OK(cuSignalExternalSemaphoresAsync(&timeline, &signal, 1, signals));
  ASSERT_OK(cuStreamSynchronize(waits));
  ASSERT_OK(cuDestroyExternalSemaphore(timeline));
}

TEST_F(Sharing, a_multicast_object_takes_no_memory_and_keeps_what_is_bound_to_it) {
  const size_t before = free_bytes();
  CUmulticastObjectProp prop = {};
  prop.numDevices = 1;
  prop.size = 4 * kGranule;
  size_t granularity = 0;
  ASSERT_OK(cuMulticastGetGranularity(&granularity, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED));
  EXPECT_EQ(granularity, kGranule);
  CUmemGenericAllocationHandle object;
  ASSERT_OK(cuMulticastCreate(&object, &prop));
  EXPECT_EQ(free_bytes(), before);
  const auto memory = create(2 * kGranule);
  EXPECT_EQ(cuMulticastBindMem(object, 0, memory, 0, 2 * kGranule, 0), CUDA_ERROR_INVALID_DEVICE);
  ASSERT_OK(cuMulticastAddDevice(object, device_));
  EXPECT_EQ(cuMulticastAddDevice(object, device_), CUDA_ERROR_INVALID_VALUE);
  ASSERT_OK(cuMulticastBindMem(object, 0, memory, 0, 2 * kGranule, 0));
  EXPECT_EQ(cuMulticastBindMem(object, kGranule, memory, 0, kGranule, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr range;
  ASSERT_OK(cuMemAddressReserve(&range, 4 * kGranule, 0, 0, 0));
  ASSERT_OK(cuMemMap(range, 4 * kGranule, 0, object, 0));
  ASSERT_OK(cuMemRelease(memory));
  EXPECT_EQ(before - free_bytes(), 2 * kGranule);
  ASSERT_OK(cuMulticastUnbind(object, device_, 0, 2 * kGranule));
  EXPECT_EQ(free_bytes(), before);

  const auto other = create(kGranule);
  ASSERT_OK(cuMulticastBindMem(object, 0, other, 0, kGranule, 0));
  ASSERT_OK(cuMemRelease(other));
  ASSERT_OK(cuMemUnmap(range, 4 * kGranule));
  EXPECT_EQ(before - free_bytes(), kGranule);
  ASSERT_OK(cuMemRelease(object));  // the end of the object is the end of its bindings
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Sharing, a_sparse_array_has_the_memory_that_is_mapped_into_it) {
  const size_t before = free_bytes();
  CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
  CUarray array;
  ASSERT_OK(cuArray3DCreate_v2(&array, &shape));
  EXPECT_EQ(free_bytes(), before);
  CUDA_ARRAY_SPARSE_PROPERTIES properties;
  ASSERT_OK(cuArrayGetSparseProperties(&properties, array));
  EXPECT_EQ(properties.tileExtent.width, 128u);
  EXPECT_EQ(properties.tileExtent.height, 128u);

  const auto memory = create(kGranule, true);
  CUarrayMapInfo info = {};
  info.resourceType = CU_RESOURCE_TYPE_ARRAY;
  info.resource.array = array;
  info.subresource.sparseLevel = {0, 0, 128, 0, 0, 256, 128, 1};
  info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info.memHandle.memHandle = memory;
  info.deviceBitMask = 1;
  CUstream stream = make_stream();
  ASSERT_OK(cuMemMapArrayAsync(&info, 1, stream));
  info.subresource.sparseLevel.offsetX = 100;  // on no tile
  EXPECT_EQ(cuMemMapArrayAsync(&info, 1, stream), CUDA_ERROR_INVALID_VALUE);
  ASSERT_OK(cuMemRelease(memory));
  EXPECT_EQ(before - free_bytes(), kGranule);
  info.subresource.sparseLevel.offsetX = 128;
  info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  ASSERT_OK(cuMemMapArrayAsync(&info, 1, stream));
  EXPECT_EQ(free_bytes(), before);
  ASSERT_OK(cuArrayDestroy(array));
}

TEST_F(Sharing, a_deferred_array_is_mapped_whole_and_lets_go_at_its_end) {
  const size_t before = free_bytes();
  CUDA_ARRAY3D_DESCRIPTOR shape = {512, 512, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING};
  CUarray array;
  ASSERT_OK(cuArray3DCreate_v2(&array, &shape));
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
  ASSERT_OK(cuArrayGetMemoryRequirements(&needs, array, device_));
  EXPECT_EQ(needs.size, 1u << 20);
  const auto memory = create(kGranule);
  CUarrayMapInfo info = {};
  info.resourceType = CU_RESOURCE_TYPE_ARRAY;
  info.resource.array = array;
  info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info.memHandle.memHandle = memory;
  info.deviceBitMask = 1;
  ASSERT_OK(cuMemMapArrayAsync(&info, 1, make_stream()));
  ASSERT_OK(cuMemRelease(memory));
  EXPECT_EQ(before - free_bytes(), kGranule);
  ASSERT_OK(cuArrayDestroy(array));
  EXPECT_EQ(free_bytes(), before);
}

}  // namespace
