// SPDX-License-Identifier: Apache-2.0
//
// Many threads make a process's first calls at once: it attaches once, and its context is charged once.
#include <atomic>
#include <thread>
#include <vector>

#include "behaviour.h"

int main() {
  constexpr int kThreads = 8;
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) {
    threads.emplace_back([&] {
      ready++;
      while (ready < kThreads) {
      }
      start();
      CUdeviceptr pointer;
      OK(cuMemAlloc(&pointer, 16 * kMiB));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const CUdevice device = start();
  const uint64_t with_all = free_bytes();
  OK(cuDevicePrimaryCtxReset(device));
  start();
  MUST(free_bytes() == with_all + kThreads * 16 * kMiB);
  return finish();
}
