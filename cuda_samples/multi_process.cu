// SPDX-License-Identifier: Apache-2.0
//
// Several processes that race for the same memory. They start before CUDA does, as CUDA asks of programs that
// fork. In each round all take until they are refused, together; then all give everything back. What they
// hold is summed in shared memory: added after it was got, taken off before it is given back, so the sum is
// never too high.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "support.h"

namespace {

struct Shared {
  std::atomic<uint32_t> arrived{0}, phase{0};
  std::atomic<uint64_t> held_bytes{0}, most_bytes{0}, least_at_refusal_bytes{UINT64_MAX}, refusals{0};
  std::atomic<uint64_t> total_bytes{0};
  std::atomic<bool> stop{false};  // a process failed: nobody waits for it
};

// Returns when all processes are here. Sleeps by yielding: a round is short.
void meet(Shared* shared, uint32_t processes) {
  const uint32_t phase = shared->phase;
  if (shared->arrived.fetch_add(1) + 1 == processes) {
    shared->arrived = 0;
    shared->phase.fetch_add(1);
    return;
  }
  while (shared->phase == phase) {
    if (shared->stop) _exit(1);
    sched_yield();
  }
}

void raise_to(std::atomic<uint64_t>* most, uint64_t value) {
  for (uint64_t seen = *most; seen < value && !most->compare_exchange_weak(seen, value);) {
  }
}

void lower_to(std::atomic<uint64_t>* least, uint64_t value) {
  for (uint64_t seen = *least; seen > value && !least->compare_exchange_weak(seen, value);) {
  }
}

void race(Shared* shared, uint32_t processes, uint64_t rounds, uint64_t chunk_bytes) {
  size_t free_bytes, total_bytes;
  CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  shared->total_bytes = total_bytes;
  std::vector<void*> taken;
  for (uint64_t round = 0; round < rounds; ++round) {
    meet(shared, processes);
    void* memory = nullptr;
    cudaError_t error;
    while ((error = cudaMalloc(&memory, chunk_bytes)) == cudaSuccess) {
      taken.push_back(memory);
      raise_to(&shared->most_bytes, shared->held_bytes.fetch_add(chunk_bytes) + chunk_bytes);
    }
    EXPECT(error == cudaErrorMemoryAllocation);
    cudaGetLastError();
    ++shared->refusals;
    meet(shared, processes);
    lower_to(&shared->least_at_refusal_bytes, shared->held_bytes);
    meet(shared, processes);
    for (void* block : taken) {
      shared->held_bytes -= chunk_bytes;
      CHECK(cudaFree(block));
    }
    taken.clear();
  }
}

}  // namespace

int main(int argc, char** argv) {
  double processes = 2, rounds = 100, chunk_mib = 128;
  bool as_json = false;
  samples::Options options("Processes that race to take memory.");
  options.number("--processes", &processes, "2 to 64 (2)");
  options.number("--rounds", &rounds, "how often they start over (100)");
  options.number("--chunk-mib", &chunk_mib, "size of each request in MiB (128)");
  options.flag("--json", &as_json, "one JSON object before the last line");
  options.parse(argc, argv);
  const auto count = static_cast<uint32_t>(std::clamp(processes, 2.0, 64.0));
  const uint64_t chunk_bytes = std::max<uint64_t>(static_cast<uint64_t>(chunk_mib), 2) * samples::kMiB;

  void* mapping = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT(mapping != MAP_FAILED);
  auto* shared = new (mapping) Shared;
  const uint64_t begin_ns = samples::now_ns();
  for (uint32_t i = 0; i < count; ++i) {
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
      race(shared, count, static_cast<uint64_t>(rounds), chunk_bytes);
      return 0;
    }
  }
  bool all_well = true;
  for (uint32_t i = 0; i < count; ++i) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) {
      all_well = false;
      shared->stop = true;
    }
  }
  EXPECT(all_well);
  EXPECT(shared->held_bytes == 0);
  EXPECT(shared->most_bytes <= shared->total_bytes);

  samples::Report report;
  report.add("sample", "multi_process");
  report.add("processes", static_cast<uint64_t>(count));
  report.add("rounds", static_cast<uint64_t>(rounds));
  report.add("chunk_bytes", chunk_bytes);
  report.add("total_bytes", shared->total_bytes.load());
  report.add("most_held_bytes", shared->most_bytes.load());
  report.add("least_held_at_refusal_bytes", shared->least_at_refusal_bytes.load());
  report.add("refusals", shared->refusals.load());
  report.add("wall_seconds", (samples::now_ns() - begin_ns) * 1e-9);
  return samples::finish(report, as_json);
}
