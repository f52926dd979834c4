// SPDX-License-Identifier: Apache-2.0
//
// Green contexts: how SMs are split, what runs where, and what a context takes and gives back.
#include <vector>

#include "driver_fixture.h"

namespace {

class Green : public Driver {
 protected:
  // The device's SMs in groups of at least `count`.
  std::vector<CUdevResource> split(unsigned count, CUdevResource* remainder = nullptr, unsigned flags = 0) {
    CUdevResource all;
    unsigned groups = 0;
    EXPECT_OK(cuDeviceGetDevResource(device_, &all, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT_OK(cuDevSmResourceSplitByCount(nullptr, &groups, &all, nullptr, flags, count));
    std::vector<CUdevResource> result(groups);
    EXPECT_OK(cuDevSmResourceSplitByCount(result.data(), &groups, &all, remainder, flags, count));
    return result;
  }

  CUgreenCtx create(CUdevResource sms) {
    CUdevResourceDesc desc = nullptr;
    CUgreenCtx green = nullptr;
    EXPECT_OK(cuDevResourceGenerateDesc(&desc, &sms, 1));
    EXPECT_OK(cuGreenCtxCreate(&green, desc, device_, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
  }

  CUstream stream_of(CUgreenCtx green) {
    CUstream stream = nullptr;
    EXPECT_OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    return stream;
  }

  // A grid that fills so many SMs: one block of the most threads and all shared memory on each.
  CUresult fill(uint64_t ns, unsigned sms, CUstream stream) {
    void* parameters[] = {&ns};
    return cuLaunchKernel(spin_, sms, 1, 1, 1024, 1, 1, 200 << 10, stream, parameters, nullptr);
  }

  float both_ms(CUstream first, unsigned first_sms, CUstream second, unsigned second_sms) {
    CUstream gate = make_stream();
    CUevent start, end, done;
    EXPECT_OK(cuEventCreate(&start, 0));
    EXPECT_OK(cuEventCreate(&end, 0));
    EXPECT_OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    EXPECT_OK(spin(20'000'000, gate));  // until all is queued
    EXPECT_OK(cuEventRecord(start, gate));
    for (CUstream stream : {first, second}) EXPECT_OK(cuStreamWaitEvent(stream, start, 0));
    EXPECT_OK(fill(5'000'000, first_sms, first));
    EXPECT_OK(fill(5'000'000, second_sms, second));
    for (CUstream stream : {first, second}) {
      EXPECT_OK(cuEventRecord(done, stream));
      EXPECT_OK(cuStreamWaitEvent(gate, done, 0));
    }
    EXPECT_OK(cuEventRecord(end, gate));
    EXPECT_OK(cuEventSynchronize(end));
    float ms = 0;
    EXPECT_OK(cuEventElapsedTime(&ms, start, end));
    return ms;
  }
};

TEST_F(Green, sms_are_split_in_aligned_groups_and_the_rest_remains) {
  CUdevResource rest;
  const auto groups = split(10, &rest);  // an H100: 132 SMs, in eights
  ASSERT_EQ(groups.size(), 8u);
  EXPECT_EQ(groups[0].sm.smCount, 16u);
  EXPECT_EQ(rest.sm.smCount, 4u);
  EXPECT_EQ(split(10, nullptr, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING).size(), 13u);

  CUdevResource all, from_group;
  unsigned count = 1;
  ASSERT_OK(cuDeviceGetDevResource(device_, &all, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(cuDevSmResourceSplitByCount(&from_group, &count, &all, nullptr, 0, 133),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDevSmResourceSplitByCount(&from_group, &count, &groups[0], nullptr, 0, 8),
            CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CUdevResource queues;
  ASSERT_OK(cuDeviceGetDevResource(device_, &queues, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG));
  EXPECT_EQ(cuDevSmResourceSplitByCount(&from_group, &count, &queues, nullptr, 0, 8),
            CUDA_ERROR_INVALID_RESOURCE_TYPE);

  CU_DEV_SM_RESOURCE_GROUP_PARAMS wanted[2] = {};
  wanted[0].smCount = 48;
  CUdevResource uneven[2];
  ASSERT_OK(cuDevSmResourceSplit(uneven, 2, &all, &rest, 0, wanted));
  EXPECT_EQ(uneven[0].sm.smCount, 48u);
  EXPECT_EQ(wanted[1].smCount, 80u);  // found out: what is left in eights
  EXPECT_EQ(rest.sm.smCount, 4u);
}

TEST_F(Green, kernels_keep_to_their_partition_and_partitions_run_beside_each_other) {
  const auto groups = split(64);
  CUgreenCtx first = create(groups[0]), second = create(groups[1]), again = create(groups[0]);
  CUstream in_first = stream_of(first), in_second = stream_of(second);
  EXPECT_NEAR(both_ms(in_first, 64, in_second, 64), 5.0f, 0.5f);
  EXPECT_NEAR(both_ms(in_first, 64, stream_of(first), 64), 10.0f, 0.5f);
  EXPECT_NEAR(both_ms(in_first, 64, stream_of(again), 64), 10.0f, 0.5f);  // the same SMs
  // A grid for the whole device takes three rounds on fewer than half of its SMs.
  EXPECT_NEAR(both_ms(in_first, 132, in_second, 64), 15.0f, 0.5f);
}

TEST_F(Green, a_green_context_takes_memory_and_keeps_the_primary_one) {
  const size_t before = free_bytes();
  CUgreenCtx green = create(split(64)[0]);
  const size_t cost = before - free_bytes();
  EXPECT_GT(cost, 0u);
  EXPECT_LT(cost, 500 * kMiB);
  ASSERT_OK(cuDevicePrimaryCtxRelease_v2(device_));
  unsigned flags;
  int active = 0;
  ASSERT_OK(cuDevicePrimaryCtxGetState(device_, &flags, &active));
  EXPECT_EQ(active, 1);

  CUcontext converted;
  CUdeviceptr memory;
  ASSERT_OK(cuCtxFromGreenCtx(&converted, green));
  ASSERT_OK(cuCtxSetCurrent(converted));
  ASSERT_OK(cuMemAlloc_v2(&memory, 4 * kMiB));
  CUdevResource own;
  ASSERT_OK(cuCtxGetDevResource(converted, &own, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(own.sm.smCount, 64u);
  ASSERT_OK(cuDevicePrimaryCtxRetain(&context_, device_));
  ASSERT_OK(cuCtxSetCurrent(context_));
  ASSERT_OK(cuGreenCtxDestroy(green));
  EXPECT_EQ(before - free_bytes(), 4 * kMiB);  // memory is the primary context's
  ASSERT_OK(cuMemFree_v2(memory));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Green, streams_of_a_destroyed_green_context_are_detached) {
  CUgreenCtx green = create(split(64)[0]), found;
  CUstream stream = stream_of(green);
  CUcontext primary, converted, of_stream;
  ASSERT_OK(cuStreamGetGreenCtx(stream, &found));
  EXPECT_EQ(found, green);
  ASSERT_OK(cuStreamGetCtx_v2(stream, &primary, &found));
  EXPECT_EQ(primary, context_);
  ASSERT_OK(cuCtxFromGreenCtx(&converted, green));
  ASSERT_OK(cuStreamGetCtx(stream, &of_stream));
  EXPECT_EQ(of_stream, converted);
  ASSERT_OK(spin(1'000'000, stream));
  ASSERT_OK(cuGreenCtxDestroy(green));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_STREAM_DETACHED);
  EXPECT_EQ(spin(1, stream), CUDA_ERROR_STREAM_DETACHED);
  EXPECT_OK(cuStreamDestroy_v2(stream));
  EXPECT_OK(cuCtxSynchronize());
}

TEST_F(Green, an_event_of_a_context_covers_all_its_streams) {
  CUgreenCtx green = create(split(64)[0]);
  CUstream one = stream_of(green), other = stream_of(green);
  CUevent event;
  ASSERT_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(spin(1'000'000, one));
  ASSERT_OK(spin(50'000'000, other));
  ASSERT_OK(cuGreenCtxRecordEvent(green, event));
  ASSERT_OK(cuStreamSynchronize(one));
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  // What comes after it in another context waits, in a stream that is made later too.
  ASSERT_OK(cuCtxWaitEvent(context_, event));
  CUstream later = make_stream();
  ASSERT_OK(spin(1'000, later));
  EXPECT_EQ(cuStreamQuery(later), CUDA_ERROR_NOT_READY);
  ASSERT_OK(cuStreamSynchronize(later));
  EXPECT_OK(cuEventQuery(event));
}

}  // namespace
