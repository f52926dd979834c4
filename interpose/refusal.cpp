// SPDX-License-Identifier: Apache-2.0
//
// What a refused program is told, and what the slice keeps of it.
#include <string.h>

#include "interpose/quota.h"
#include "interpose/text.h"

namespace hook {
namespace {

constinit std::atomic<bool> refusal_was_printed{false};
constinit std::atomic<bool> full_gpu_was_printed{false};
constinit std::atomic<bool> off_limits_was_printed{false};

uint64_t realtime_ns() {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void log_refusal(const char* function, const SliceGpu& gpu, uint64_t bytes, const limiter::Usage& usage) {
  shm::State& state = *gpu.slice->state;
  // The counter hands out the entries: two writers meet in one only if kMaxRefusals come between.
  const uint64_t sequence = state.counters[shm::kRefusals].fetch_add(1, std::memory_order_relaxed) + 1;
  shm::Refusal& entry = state.refusals[sequence % shm::kMaxRefusals];
  entry.sequence.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.time_ns = realtime_ns();
  entry.request_bytes = bytes;
  entry.used_bytes = usage.used_bytes();
  entry.quota_bytes = usage.quota_bytes;
  entry.gpu = static_cast<uint32_t>(gpu.index);
  entry.pid = static_cast<uint32_t>(system_call(SYS_getpid));
  strncpy(entry.function, function, sizeof entry.function - 1);
  entry.function[sizeof entry.function - 1] = 0;
  // release; a reader that finds the sequence finds the rest.
  entry.sequence.store(sequence, std::memory_order_release);
}

// The other processes of the slice that have most, "python3 (pid 77) 3.50 GiB"; at most three.
void add_others(Line* line, const SliceGpu& gpu) {
  const shm::State& state = *gpu.slice->state;
  uint32_t slots = state.header.slots_high.load(std::memory_order_relaxed);
  if (slots > shm::kMaxSlots) slots = shm::kMaxSlots;
  uint64_t before_bytes = ~uint64_t{0};
  uint32_t before_slot = 0;
  for (int shown = 0; shown < 3; shown++) {
    uint64_t most_bytes = 0;
    uint32_t most_slot = 0;
    for (uint32_t slot = 0; slot < slots; slot++) {
      if (slot == gpu.slice->slot.slot) continue;
      const uint64_t bytes = limiter::slot_charge(*gpu.slice->limits, state, gpu.index, slot);
      const bool after = bytes < before_bytes || (bytes == before_bytes && slot > before_slot);
      if (after && bytes > most_bytes) {
        most_bytes = bytes;
        most_slot = slot;
      }
    }
    if (most_bytes == 0) return;
    const shm::Slot& slot = state.slots[most_slot];
    *line << ", ";
    line->foreign(slot.name, sizeof slot.name)
        << " (pid " << shm::slot_pid(slot, slot.owner.load(std::memory_order_relaxed)) << ") ";
    line->bytes(most_bytes);
    before_bytes = most_bytes;
    before_slot = most_slot;
  }
}

Line& begin(Line& line, const char* function, const SliceGpu& gpu, uint64_t bytes) {
  line << "cuslice: slice ";
  line.foreign(gpu.slice->id, sizeof gpu.slice->id) << ": " << function << " of ";
  return line.bytes(bytes) << " refused: ";
}

// "team-a (GPU-0123...)", and so on.
void add_slices(Line* line) {
  for (int i = 0; i < session().slice_count; i++) {
    const AttachedSlice& slice = session().slices[i];
    *line << (i == 0 ? "" : ", ");
    line->foreign(slice.id, sizeof slice.id) << " (";
    for (int gpu = 0; gpu < slice.gpu_count; gpu++) {
      *line << (gpu == 0 ? "" : " ");
      line->uuid(slice.limits->gpus[gpu].uuid);
    }
    *line << ")";
  }
}

}  // namespace

void report_off_limits(int device) {
  uint8_t uuid[16];
  if (!uuid_of_device(device, uuid) || off_limits_was_printed.exchange(true, std::memory_order_relaxed))
    return;
  Line line;
  line << "cuslice: GPU ";
  line.uuid(uuid) << " is refused to this process, which has no slice of it: choose the slice's GPU with "
                     "cuslicectl run --gpu, or the program's with CUDA_VISIBLE_DEVICES. Slices here: ";
  add_slices(&line);
  line.write_to_stderr();
}

void report_refusal(const char* function, const SliceGpu& gpu, uint64_t bytes) {
  const limiter::Usage usage = limiter::usage(*gpu.slice->limits, *gpu.slice->state, gpu.index);
  log_refusal(function, gpu, bytes, usage);
  if (refusal_was_printed.exchange(true, std::memory_order_relaxed)) return;
  Line line;
  begin(line, function, gpu, bytes) << "the slice has ";
  line.bytes(usage.quota_bytes) << " of GPU " << static_cast<uint64_t>(gpu.index) << ", ";
  line.bytes(usage.used_bytes()) << " in use: this process ";
  line.bytes(limiter::slot_charge(*gpu.slice->limits, *gpu.slice->state, gpu.index, gpu.slice->slot.slot));
  add_others(&line, gpu);
  line << "; of this, the driver's own ";
  line.bytes(usage.overhead_bytes);
  if (usage.orphaned_bytes != 0) {
    line << "; ended processes, not yet returned by the driver, ";
    line.bytes(usage.orphaned_bytes);
  }
  line << ". Further refusals are counted, not printed.";
  line.write_to_stderr();
}

void report_full_gpu(const char* function, const SliceGpu& gpu, uint64_t bytes) {
  gpu.slice->state->counters[shm::kDriverRefusals].fetch_add(1, std::memory_order_relaxed);
  if (full_gpu_was_printed.exchange(true, std::memory_order_relaxed)) return;
  const limiter::Usage usage = limiter::usage(*gpu.slice->limits, *gpu.slice->state, gpu.index);
  Line line;
  begin(line, function, gpu, bytes) << "GPU full. The slice would have had ";
  line.bytes(usage.free_bytes()) << " left of its ";
  line.bytes(usage.quota_bytes) << "; somebody uses memory of GPU " << static_cast<uint64_t>(gpu.index)
                                << " that no slice was charged for.";
  line.write_to_stderr();
}

}  // namespace hook
