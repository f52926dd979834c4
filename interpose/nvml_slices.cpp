// SPDX-License-Identifier: Apache-2.0
#include "interpose/nvml_slices.h"

#include <string.h>

#include "interpose/attach.h"
#include "interpose/futex_lock.h"
#include "interpose/process.h"
#include "interpose/text.h"
#include "shm/segment.h"

namespace hook {
namespace {

constinit gate::FutexLock looking;
constinit Membership seen = Membership::kUnknown;  // these three under `looking`, until seen is decided
constinit SeenSlice slices[kMaxSlices] = {};
constinit int slice_count = 0;
constinit std::atomic<bool> decided{false};

struct Looking {
  bool failed;
};

bool look_at(const char* directory, void* context) {
  auto* looking_at = static_cast<Looking*>(context);
  SeenSlice slice = {};
  shm::AttachResult result =
      slice_count < kMaxSlices ? shm::attach_limits(directory, &slice.limits) : shm::AttachResult::kFailed;
  if (result == shm::AttachResult::kReady) result = shm::attach_state_read_only(directory, &slice.state);
  if (result != shm::AttachResult::kReady) {
    Line line;
    line << "cuslice: the GPU is hidden from this process: slice ";
    line.foreign(directory, 300) << ": " << shm::describe(result) << "; cuslicectl ls shows its state";
    line.write_to_stderr();
    looking_at->failed = true;
    return false;
  }
  const uint32_t gpus = slice.limits->header.gpu_count;
  slice.gpu_count = static_cast<int>(gpus < shm::kMaxGpus ? gpus : shm::kMaxGpus);
  slices[slice_count++] = slice;
  return true;
}

Membership look() {
  // acquire; pairs with the release below: who sees it decided sees the slices whole.
  if (decided.load(std::memory_order_acquire)) return seen;
  const gate::Locked locked(looking);
  if (seen != Membership::kUnknown) return seen;
  Looking context = {false};
  seen = each_slice_directory(&look_at, &context);
  if (seen == Membership::kAttached && context.failed) seen = Membership::kClosed;
  decided.store(true, std::memory_order_release);
  return seen;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool parse_uuid(const char* text, uint8_t (&uuid)[16]) {
  if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0) return false;
  int digits = 0;
  for (const char* at = text + 4; *at != 0 && digits < 32; at++) {
    if (*at == '-') continue;
    const int digit = hex_digit(*at);
    if (digit < 0) return false;
    uuid[digits / 2] = static_cast<uint8_t>(uuid[digits / 2] << 4 | digit);
    digits++;
  }
  return digits == 32;
}

uint64_t own_pid_namespace() {
  limiter::ProcessIdentity self;
  identify_self(&self);
  return self.pid_namespace;
}

}  // namespace

Sight see_gpu(const char* text, SeenGpu* gpu) {
  const Membership membership = look();
  if (membership == Membership::kClosed) return Sight::kClosed;
  uint8_t uuid[16] = {};
  if (membership != Membership::kAttached || !parse_uuid(text, uuid)) return Sight::kNothing;
  for (int i = 0; i < slice_count; i++) {
    for (int index = 0; index < slices[i].gpu_count; index++) {
      if (memcmp(slices[i].limits->gpus[index].uuid, uuid, sizeof uuid) != 0) continue;
      *gpu = {&slices[i], index};
      return Sight::kSlice;
    }
  }
  return Sight::kNothing;
}

bool process_of_slice(const SeenSlice& slice, uint32_t host_pid, uint32_t* slot_number, uint32_t* pid_here) {
  uint32_t slots = slice.state->header.slots_high.load(std::memory_order_acquire);
  if (slots > shm::kMaxSlots) slots = shm::kMaxSlots;
  for (uint32_t index = 0; index < slots; index++) {
    const shm::Slot& slot = slice.state->slots[index];
    const uint32_t owner = slot.owner.load(std::memory_order_acquire);
    if (shm::slot_state(owner) != shm::kSlotLive) continue;
    const uint32_t pid = shm::slot_pid(slot, owner);
    const shm::SlotRecord& record = slice.limits->slots[index];
    const uint32_t recorded = record.generation.load(std::memory_order_relaxed) == shm::slot_generation(owner)
                                  ? record.host_pid.load(std::memory_order_relaxed)
                                  : 0;
    // Without a broker nobody has told the host's pid; in the host's own namespace it is the process's.
    if (pid == 0 || host_pid != (recorded != 0 ? recorded : pid)) continue;
    *slot_number = index;
    const bool here = slot.pid_namespace.load(std::memory_order_relaxed) == own_pid_namespace();
    *pid_here = here ? pid : host_pid;
    return true;
  }
  return false;
}

}  // namespace hook
