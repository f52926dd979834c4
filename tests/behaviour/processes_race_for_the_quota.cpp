// SPDX-License-Identifier: Apache-2.0
//
// processes_race_for_the_quota QUOTA_MIB ROUNDS: two processes of a slice, two threads each, take memory at
// the same time until each is refused. What all of them got never passes the quota, and in a round where the
// driver has more than that no request is refused that would have fitted.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "behaviour.h"

namespace {

constexpr int kProcesses = 2;
constexpr int kThreads = 2;  // each

struct Shared {
  std::atomic<uint64_t> arrived;
  std::atomic<uint64_t> taken_bytes;
  std::atomic<bool> failed;
};

void meet(Shared* shared, uint64_t number) {
  shared->arrived.fetch_add(1);
  while (shared->arrived.load() < number * kProcesses * kThreads) std::this_thread::yield();
}

void race(Shared* shared, CUcontext context, uint64_t room, int rounds, int who) {
  OK(cuCtxSetCurrent(context));
  uint64_t meeting = 1;
  for (int round = 0; round < rounds; round++) {
    // Large and small pieces, not the same for everybody.
    const uint64_t piece = room / (2 + static_cast<uint64_t>(round * 7 + who * 5) % 11) / kGranule * kGranule;
    std::vector<CUdeviceptr> held;
    meet(shared, meeting++);
    for (;;) {
      CUdeviceptr pointer;
      const CUresult result = cuMemAlloc(&pointer, piece);
      if (result != CUDA_SUCCESS) {
        MUST_BE(result, CUDA_ERROR_OUT_OF_MEMORY);
        break;
      }
      held.push_back(pointer);
      if (shared->taken_bytes.fetch_add(piece) + piece > room) shared->failed.store(true);
    }
    meet(shared, meeting++);
    // All were refused: nobody's piece would have fitted.
    if (shared->taken_bytes.load() + piece <= room) shared->failed.store(true);
    meet(shared, meeting++);
    for (const CUdeviceptr pointer : held) {
      shared->taken_bytes.fetch_sub(piece);
      OK(cuMemFree(pointer));
    }
    meet(shared, meeting++);
    MUST(!shared->failed.load());
  }
}

void run(Shared* shared, uint64_t quota, int rounds, int process) {
  start();
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  const uint64_t room = quota - kProcesses * 500 * kMiB;  // both have a context
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; thread++) {
    threads.emplace_back(race, shared, context, room, rounds, process * kThreads + thread);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t quota = argument(argc, argv, 1) * kMiB;
  const int rounds = static_cast<int>(argument(argc, argv, 2));
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  MUST(shared != MAP_FAILED);
  const pid_t child = fork();
  MUST(child >= 0);
  run(shared, quota, rounds, child == 0 ? 1 : 0);
  if (child == 0) return 0;
  int status;
  MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return finish();
}
