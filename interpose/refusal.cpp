// SPDX-License-Identifier: Apache-2.0
//
// What a refused program is told, and what the slice keeps of it.
#include <string.h>

#include <utility>

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

// Calls visit(slot) for each slot but this process's.
template <typename Visit>
void for_each_peer(const SliceGpu& gpu, Visit visit) {
  uint32_t slots = gpu.slice->state->header.slots_high.load(std::memory_order_relaxed);
  if (slots > shm::kMaxSlots) slots = shm::kMaxSlots;
  for (uint32_t slot = 0; slot < slots; slot++) {
    if (slot != gpu.slice->slot.slot) visit(slot);
  }
}

uint64_t charge_of(const SliceGpu& gpu, uint32_t slot) {
  return limiter::slot_charge(*gpu.slice->limits, *gpu.slice->state, gpu.index, slot);
}

// In pools of other processes, some of it unused: only they can give it back.
uint64_t pooled_by_peers(const SliceGpu& gpu) {
  uint64_t bytes = 0;
  for_each_peer(gpu, [&](uint32_t slot) {
    bytes += limiter::slot_use(*gpu.slice->state, gpu.index, slot).pooled_bytes;
  });
  return bytes;
}

uint32_t own_live_word(const SliceGpu& gpu) {
  return shm::slot_owner(shm::kSlotLive, gpu.slice->slot.generation);
}
const shm::Slot& own_slot(const SliceGpu& gpu) { return gpu.slice->state->slots[gpu.slice->slot.slot]; }

void log_refusal(const char* function, const SliceGpu& gpu, uint64_t bytes, const limiter::Usage& usage,
                 uint64_t peer_pooled_bytes) {
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
  entry.overhead_bytes = usage.overhead_bytes;
  entry.peer_pooled_bytes = peer_pooled_bytes;
  entry.gpu = static_cast<uint32_t>(gpu.index);
  entry.pid = static_cast<uint32_t>(system_call(SYS_getpid));
  shm::slot_name(own_slot(gpu), own_live_word(gpu), entry.name);
  strncpy(entry.function, function, sizeof entry.function - 1);
  entry.function[sizeof entry.function - 1] = 0;
  // release; a reader that finds the sequence finds the rest.
  entry.sequence.store(sequence, std::memory_order_release);
}

void add_process(Line* line, const shm::Slot& slot, uint32_t owner, uint32_t pid, uint64_t bytes) {
  char name[shm::kNameBytes];
  shm::slot_name(slot, owner, name);
  line->foreign(name, sizeof name) << " (pid " << pid << ") ";
  line->bytes(bytes);
}

// The other processes of the slice that have most, "python3 (pid 77) 3.50 GiB", and how many more have any.
void add_peers(Line* line, const SliceGpu& gpu) {
  constexpr uint32_t kShown = 3;
  struct Peer {
    uint32_t slot;
    uint64_t bytes;
  } most[kShown] = {};  // the largest first
  uint32_t peers = 0;
  uint64_t peer_bytes = 0;
  for_each_peer(gpu, [&](uint32_t slot) {
    Peer peer = {slot, charge_of(gpu, slot)};
    if (peer.bytes == 0) return;
    peers++;
    peer_bytes += peer.bytes;
    for (Peer& place : most) {
      if (peer.bytes > place.bytes) std::swap(peer, place);
    }
  });
  for (const Peer& peer : most) {
    if (peer.bytes == 0) return;
    const shm::Slot& slot = gpu.slice->state->slots[peer.slot];
    *line << ", ";
    const uint32_t owner = slot.owner.load(std::memory_order_relaxed);
    add_process(line, slot, owner, shm::slot_pid(slot, owner), peer.bytes);
    peer_bytes -= peer.bytes;
  }
  if (peers <= kShown) return;
  *line << ", and " << (peers - kShown) << " more ";
  line->bytes(peer_bytes);
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
  const uint64_t peer_pooled_bytes = pooled_by_peers(gpu);
  log_refusal(function, gpu, bytes, usage, peer_pooled_bytes);
  if (refusal_was_printed.exchange(true, std::memory_order_relaxed)) return;
  Line line;
  begin(line, function, gpu, bytes) << "the slice has ";
  line.bytes(usage.quota_bytes) << " of GPU " << static_cast<uint64_t>(gpu.index) << ", ";
  line.bytes(usage.used_bytes()) << " in use: this process, ";
  add_process(&line, own_slot(gpu), own_live_word(gpu), static_cast<uint32_t>(system_call(SYS_getpid)),
              charge_of(gpu, gpu.slice->slot.slot));
  add_peers(&line, gpu);
  line << "; of this, the driver's own ";
  line.bytes(usage.overhead_bytes);
  if (peer_pooled_bytes != 0) {
    line << "; other processes' memory pools, which only they can empty, ";
    line.bytes(peer_pooled_bytes);
  }
  if (usage.orphaned_bytes != 0) {
    line << "; ended processes, not yet returned by the driver, ";
    line.bytes(usage.orphaned_bytes);
  }
  line << ". Further refusals are not printed: cuslicectl explain ";
  line.foreign(gpu.slice->id, sizeof gpu.slice->id) << " has them.";
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
