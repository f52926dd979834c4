// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the simulated driver start from: an initialised driver, the primary context current, and
// a kernel that takes as long as it is told. Every test runs in a process of its own, on a private simulated
// node.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

constexpr size_t kMiB = 1u << 20;
constexpr size_t kGranule = 2 * kMiB;

#define EXPECT_OK(call) EXPECT_EQ(call, CUDA_SUCCESS)
#define ASSERT_OK(call) ASSERT_EQ(call, CUDA_SUCCESS)

class Driver : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(cuInit(0));
    ASSERT_OK(cuDeviceGet(&device_, 0));
    ASSERT_OK(cuDevicePrimaryCtxRetain(&context_, device_));
    ASSERT_OK(cuCtxSetCurrent(context_));
    const char* image = ".version 8.0\n.target sm_90\n.entry spin_for_ns(.param .u64 ns) { ret; }\n";
    ASSERT_OK(cuModuleLoadData(&module_, image));
    ASSERT_OK(cuModuleGetFunction(&spin_, module_, "spin_for_ns"));
  }

  // One block: it leaves room for others on the device.
  CUresult spin(uint64_t ns, CUstream stream) {
    void* parameters[] = {&ns};
    return cuLaunchKernel(spin_, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
  }

  size_t free_bytes() {
    size_t free = 0, total = 0;
    EXPECT_OK(cuMemGetInfo_v2(&free, &total));
    return free;
  }

  // Milliseconds of the device's clock between two events around `work`. The device is kept busy until all of
  // it is queued, so that the pace of this program is not measured.
  float device_ms(CUstream stream, const std::function<void()>& work) {
    CUevent start, end;
    EXPECT_OK(cuEventCreate(&start, CU_EVENT_DEFAULT));
    EXPECT_OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    EXPECT_OK(spin(20'000'000, stream));
    EXPECT_OK(cuEventRecord(start, stream));
    work();
    EXPECT_OK(cuEventRecord(end, stream));
    EXPECT_OK(cuEventSynchronize(end));
    float ms = 0;
    EXPECT_OK(cuEventElapsedTime(&ms, start, end));
    return ms;
  }

  CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_OK(cuStreamCreate(&stream, flags));
    return stream;
  }

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction spin_ = nullptr;
};
