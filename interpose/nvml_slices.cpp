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

Sight see_device(nvmlDevice_t device, SeenGpu* gpu) {
  char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
  if (real<fn::nvmlDeviceGetUUID>(device, static_cast<char*>(uuid), unsigned{sizeof uuid}) != NVML_SUCCESS) {
    return Sight::kNothing;
  }
  return see_gpu(uuid, gpu);
}

// What the process of a slot is called.
struct Residents::Names {
  uint32_t own_pid;  // in its own namespace
  uint32_t
      host_pid;  // without a broker nobody has told it: then own_pid, which it is in the host's namespace
  uint64_t pid_namespace;
  uint64_t start_time;  // as the broker knows it; 0: not known
};

Residents::Residents(const SeenGpu& gpu) : gpu_(gpu), pid_namespace_(own_pid_namespace()) {}

template <typename Matches>
bool Residents::find_slot(Matches matches, Names* names, Resident* resident) const {
  const SeenSlice& slice = *gpu_.slice;
  uint32_t slots = slice.state->header.slots_high.load(std::memory_order_acquire);
  if (slots > shm::kMaxSlots) slots = shm::kMaxSlots;
  for (uint32_t index = 0; index < slots; index++) {
    const shm::Slot& slot = slice.state->slots[index];
    const uint32_t owner = slot.owner.load(std::memory_order_acquire);
    if (shm::slot_state(owner) != shm::kSlotLive) continue;
    *names = {};
    names->own_pid = shm::slot_pid(slot, owner);
    names->pid_namespace = shm::slot_value(slot.pid_namespace, owner);
    const shm::SlotRecord& record = slice.limits->slots[index];
    if (record.generation.load(std::memory_order_relaxed) == shm::slot_generation(owner)) {
      names->host_pid = record.host_pid.load(std::memory_order_relaxed);
      names->start_time = record.start_time.load(std::memory_order_relaxed);
    }
    if (names->host_pid == 0) names->host_pid = names->own_pid;
    if (names->own_pid == 0 || !matches(*names)) continue;
    *resident = {index, pid_here(*names)};
    return resident->pid != 0;
  }
  return false;
}

// Of another namespace than ours is visible here only what is in one below ours, and its host pid is its name
// here only if this is the host's: then the process of that pid began when the broker says.
uint32_t Residents::pid_here(const Names& names) const {
  if (names.pid_namespace == pid_namespace_) return names.own_pid;
  const bool is_host = names.start_time != 0 && !process_is_dead(names.host_pid, names.start_time);
  return is_host ? names.host_pid : 0;
}

bool Residents::find_by_host_pid(uint32_t pid, Resident* resident) const {
  Names names;
  return find_slot([=](const Names& candidate) { return candidate.host_pid == pid; }, &names, resident);
}

bool Residents::find_by_own_pid(uint32_t pid, uint32_t* host_pid, Resident* resident) const {
  Names names;
  const auto matches = [=, this](const Names& candidate) {
    return candidate.own_pid == pid && candidate.pid_namespace == pid_namespace_;
  };
  if (!find_slot(matches, &names, resident)) return false;
  *host_pid = names.host_pid;
  return true;
}

bool Residents::find_here(uint32_t pid, uint32_t* host_pid, Resident* resident) const {
  if (find_by_own_pid(pid, host_pid, resident)) return true;
  *host_pid = pid;
  return find_by_host_pid(pid, resident) && resident->pid == pid;
}

uint64_t Residents::charge(uint32_t slot) const {
  return limiter::slot_charge(*gpu_.slice->limits, *gpu_.slice->state, gpu_.index, slot);
}

}  // namespace hook
