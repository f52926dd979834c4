// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <atomic>
#include <thread>

#include "driver_fixture.h"

namespace {

double now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

void raise_flag(void* flag) { *static_cast<std::atomic<int>*>(flag) = 1; }

void sleep_then_raise_flag(void* flag) {
  timespec pause{0, 20'000'000};
  nanosleep(&pause, nullptr);
  *static_cast<std::atomic<int>*>(flag) = 1;
}

}  // namespace

using Streams = Driver;

TEST_F(Streams, a_kernel_takes_the_time_that_it_is_told) {
  CUstream stream = make_stream();
  EXPECT_NEAR(device_ms(stream, [&] { EXPECT_OK(spin(5'000'000, stream)); }), 5.0f, 0.2f);
}

TEST_F(Streams, a_kernels_parameter_in_a_buffer_is_read_too) {
  CUstream stream = make_stream();
  uint64_t ns = 3'000'000;
  size_t bytes = sizeof ns;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &ns, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  const float ms = device_ms(
      stream, [&] { EXPECT_OK(cuLaunchKernel(spin_, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, extra)); });
  EXPECT_NEAR(ms, 3.0f, 0.2f);
}

TEST_F(Streams, thousands_of_kernels_between_two_events_add_up) {
  CUstream stream = make_stream();
  const float ms = device_ms(stream, [&] {
    for (int i = 0; i < 5000; ++i) ASSERT_OK(spin(2'000, stream));
  });
  // More than a queue holds: how fast they come has a part in it.
  EXPECT_GE(ms, 9.99f);
  EXPECT_LT(ms, 100.0f);
}

TEST_F(Streams, small_kernels_of_two_streams_run_beside_each_other) {
  CUstream first = make_stream();
  CUstream second = make_stream();
  const double start = now_ms();
  ASSERT_OK(spin(30'000'000, first));
  ASSERT_OK(spin(30'000'000, second));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_LT(now_ms() - start, 55.0);
}

TEST_F(Streams, a_stream_waits_for_an_event_of_another) {
  CUstream first = make_stream();
  CUstream second = make_stream();
  CUevent event;
  ASSERT_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(spin(20'000'000, first));
  ASSERT_OK(cuEventRecord(event, first));
  ASSERT_OK(cuStreamWaitEvent(second, event, 0));
  ASSERT_OK(spin(1'000, second));
  EXPECT_EQ(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  ASSERT_OK(cuStreamSynchronize(second));
  EXPECT_OK(cuEventQuery(event));
}

TEST_F(Streams, the_legacy_stream_waits_for_blocking_streams_and_they_for_it) {
  CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  ASSERT_OK(spin(20'000'000, blocking));
  ASSERT_OK(spin(1'000, nullptr));
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  ASSERT_OK(cuStreamSynchronize(nullptr));
  EXPECT_OK(cuStreamQuery(blocking));
  ASSERT_OK(spin(20'000'000, nullptr));
  ASSERT_OK(spin(1'000, blocking));
  ASSERT_OK(cuStreamSynchronize(blocking));
  EXPECT_OK(cuStreamQuery(nullptr));
}

TEST_F(Streams, a_non_blocking_stream_does_not_wait_for_the_legacy_stream) {
  CUstream independent = make_stream();
  ASSERT_OK(spin(50'000'000, nullptr));
  ASSERT_OK(spin(1'000, independent));
  ASSERT_OK(cuStreamSynchronize(independent));
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
}

TEST_F(Streams, the_per_thread_functions_mean_another_default_stream) {
  CUstream legacy_id_of = CU_STREAM_LEGACY;
  unsigned long long legacy, own, own_by_handle;
  ASSERT_OK(cuStreamGetId(legacy_id_of, &legacy));
  ASSERT_OK(cuStreamGetId_ptsz(nullptr, &own));
  ASSERT_OK(cuStreamGetId(CU_STREAM_PER_THREAD, &own_by_handle));
  EXPECT_NE(legacy, own);
  EXPECT_EQ(own, own_by_handle);
  unsigned long long others = 0;
  std::thread([&] {
    EXPECT_OK(cuCtxSetCurrent(context_));
    EXPECT_OK(cuStreamGetId_ptsz(nullptr, &others));
  }).join();
  EXPECT_NE(own, others);
}

TEST_F(Streams, host_functions_run_in_order_on_a_thread_of_their_own) {
  CUstream stream = make_stream();
  std::atomic<int> flag{0};
  CUdeviceptr memory;
  unsigned char seen = 1;
  ASSERT_OK(cuMemAlloc_v2(&memory, 64));
  ASSERT_OK(cuMemsetD8_v2(memory, 0, 64));
  ASSERT_OK(spin(5'000'000, stream));
  ASSERT_OK(cuLaunchHostFunc(stream, sleep_then_raise_flag, &flag));
  EXPECT_EQ(flag, 0);
  // What follows a host function comes after it.
  ASSERT_OK(cuMemsetD8Async(memory, 5, 64, stream));
  ASSERT_OK(cuMemcpyDtoH_v2(&seen, memory, 1));
  EXPECT_EQ(seen, 0);
  ASSERT_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(flag, 1);
  ASSERT_OK(cuMemcpyDtoH_v2(&seen, memory, 1));
  EXPECT_EQ(seen, 5);
}

TEST_F(Streams, an_event_behind_a_host_function_holds_back_another_stream) {
  CUstream first = make_stream();
  CUstream second = make_stream();
  CUevent event;
  std::atomic<int> flag{0};
  ASSERT_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
  ASSERT_OK(cuLaunchHostFunc(first, sleep_then_raise_flag, &flag));
  ASSERT_OK(cuEventRecord(event, first));
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  ASSERT_OK(cuStreamWaitEvent(second, event, 0));
  ASSERT_OK(cuStreamSynchronize(second));
  EXPECT_EQ(flag, 1);
}

TEST_F(Streams, a_stream_waits_for_a_value_that_another_writes) {
  CUstream waiting = make_stream();
  CUstream writing = make_stream();
  CUdeviceptr word;
  ASSERT_OK(cuMemAlloc_v2(&word, 64));
  ASSERT_OK(cuMemsetD32_v2(word, 0, 1));
  std::atomic<int> flag{0};
  ASSERT_OK(cuStreamWaitValue32_v2(waiting, word, 3, CU_STREAM_WAIT_VALUE_GEQ));
  ASSERT_OK(cuLaunchHostFunc(waiting, raise_flag, &flag));
  ASSERT_OK(spin(10'000'000, writing));
  EXPECT_EQ(flag, 0);
  ASSERT_OK(cuStreamWriteValue32_v2(writing, word, 4, 0));
  ASSERT_OK(cuStreamSynchronize(waiting));
  EXPECT_EQ(flag, 1);
}

TEST_F(Streams, a_destroyed_stream_still_does_its_work) {
  CUstream stream = make_stream();
  std::atomic<int> flag{0};
  ASSERT_OK(spin(5'000'000, stream));
  ASSERT_OK(cuLaunchHostFunc(stream, raise_flag, &flag));
  ASSERT_OK(cuStreamDestroy_v2(stream));
  for (int i = 0; i < 2000 && flag == 0; ++i) {
    timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  EXPECT_EQ(flag, 1);
}

TEST_F(Streams, a_cooperative_grid_that_does_not_fit_is_refused) {
  uint64_t ns = 1000;
  void* parameters[] = {&ns};
  EXPECT_OK(cuLaunchCooperativeKernel(spin_, 132, 1, 1, 1024, 1, 1, 0, nullptr, parameters));
  EXPECT_EQ(cuLaunchCooperativeKernel(spin_, 1000, 1, 1, 1024, 1, 1, 0, nullptr, parameters),
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  EXPECT_EQ(cuLaunchKernel(spin_, 1, 1, 1, 2048, 1, 1, 0, nullptr, parameters, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Streams, many_threads_launch_and_synchronise) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      ASSERT_OK(cuCtxSetCurrent(context_));
      CUstream stream = make_stream(CU_STREAM_DEFAULT);
      for (int round = 0; round < 200; ++round) {
        CUdeviceptr memory;
        ASSERT_OK(cuMemAllocAsync(&memory, 4096, stream));
        ASSERT_OK(spin(1'000, stream));
        ASSERT_OK(spin(1'000, nullptr));
        ASSERT_OK(cuMemFreeAsync(memory, stream));
        if (round % 20 == 0) {
          ASSERT_OK(cuStreamSynchronize(stream));
        }
      }
      ASSERT_OK(cuStreamDestroy_v2(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_OK(cuCtxSynchronize());
}
