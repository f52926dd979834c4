// SPDX-License-Identifier: Apache-2.0
//
// NVML shows the slice: its memory, and its own processes. All other GPUs and figures are as NVML has them.
#include <sys/mman.h>

#include <algorithm>

#include "interpose/nvml_driver.h"
#include "interpose/nvml_slices.h"

namespace hook {
namespace {

Sight see_device(nvmlDevice_t device, SeenGpu* gpu) {
  char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
  if (real<fn::nvmlDeviceGetUUID>(device, static_cast<char*>(uuid), unsigned{sizeof uuid}) != NVML_SUCCESS) {
    return Sight::kNothing;
  }
  return see_gpu(uuid, gpu);
}

// `Memory` is any version of NVML's struct.
template <typename Memory>
nvmlReturn_t memory_of_slice(nvmlReturn_t result, nvmlDevice_t device, Memory* memory) {
  if (result != NVML_SUCCESS) return result;
  SeenGpu gpu;
  const Sight sight = see_device(device, &gpu);
  if (sight == Sight::kClosed) return NVML_ERROR_UNKNOWN;
  if (sight == Sight::kNothing) return result;
  const limiter::Usage usage = limiter::usage(*gpu.slice->limits, *gpu.slice->state, gpu.index);
  const unsigned long long free = usage.free_bytes();
  memory->free = std::min(memory->free, free);
  memory->total = std::min<unsigned long long>(memory->total, usage.quota_bytes);
  memory->used = std::min<unsigned long long>(memory->total, usage.used_bytes());
  return result;
}

// Scratch for the whole GPU's list; the caller's array has room for the slice's only.
template <typename Info>
class ProcessList {
 public:
  explicit ProcessList(unsigned capacity)
      : capacity_(capacity),
        entries_(static_cast<Info*>(
            mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~ProcessList() {
    if (*this) munmap(entries_, bytes());
  }
  ProcessList(const ProcessList&) = delete;
  ProcessList& operator=(const ProcessList&) = delete;
  explicit operator bool() const { return entries_ != MAP_FAILED; }
  unsigned capacity() const { return capacity_; }
  Info* entries() const { return entries_; }

 private:
  size_t bytes() const { return capacity_ * sizeof(Info); }

  const unsigned capacity_;
  Info* const entries_;
};

// Keeps the slice's processes of the first `count`, under the pids that they have here. How many are left.
template <typename Info>
unsigned keep_own(const SeenGpu& gpu, Info* entries, unsigned count) {
  unsigned kept = 0;
  for (unsigned i = 0; i < count; i++) {
    Info entry = entries[i];
    uint32_t slot;
    uint32_t pid;
    if (!process_of_slice(*gpu.slice, entry.pid, &slot, &pid)) continue;
    entry.pid = pid;
    // In a container the driver often can't tell; the ledger can.
    if (entry.usedGpuMemory == static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE)) {
      entry.usedGpuMemory = limiter::slot_charge(*gpu.slice->limits, *gpu.slice->state, gpu.index, slot);
    }
    entries[kept++] = entry;
  }
  return kept;
}

// `ask(count, infos)` is the true function of this list.
template <typename Info, typename Ask>
nvmlReturn_t processes_of_slice(nvmlDevice_t device, unsigned* count, Info* infos, Ask ask) {
  SeenGpu gpu;
  const Sight sight = count != nullptr ? see_device(device, &gpu) : Sight::kNothing;
  if (sight == Sight::kClosed) return NVML_ERROR_UNKNOWN;
  if (sight == Sight::kNothing) return ask(count, infos);

  // The list may grow between being counted and being read.
  constexpr unsigned kMore = 64;
  constexpr int kAttempts = 4;
  unsigned there = 0;
  nvmlReturn_t result = ask(&there, nullptr);
  for (int attempt = 0; result == NVML_ERROR_INSUFFICIENT_SIZE && attempt < kAttempts; attempt++) {
    const ProcessList<Info> list(there + kMore);
    if (!list) return NVML_ERROR_MEMORY;
    there = list.capacity();
    result = ask(&there, list.entries());
    if (result != NVML_SUCCESS) continue;
    const unsigned own = keep_own(gpu, list.entries(), std::min(there, list.capacity()));
    const unsigned room = infos != nullptr ? *count : 0;
    *count = own;
    if (own > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    std::copy_n(list.entries(), own, infos);
    return NVML_SUCCESS;
  }
  if (result == NVML_SUCCESS) *count = 0;
  return result;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) noexcept {
  return memory_of_slice(real<fn::nvmlDeviceGetMemoryInfo>(device, memory), device, memory);
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) noexcept {
  const nvmlReturn_t result =
      memory_of_slice(real<fn::nvmlDeviceGetMemoryInfo_v2>(device, memory), device, memory);
  SeenGpu gpu;
  // What the driver reserves is the whole GPU's, and in nobody's slice.
  if (result == NVML_SUCCESS && see_device(device, &gpu) == Sight::kSlice) memory->reserved = 0;
  return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                  nvmlProcessInfo_v1_t* infos) noexcept {
  return processes_of_slice(device, infoCount, infos, [=](unsigned* count, nvmlProcessInfo_v1_t* out) {
    return real<fn::nvmlDeviceGetComputeRunningProcesses>(device, count, out);
  });
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_v2_t* infos) noexcept {
  return processes_of_slice(device, infoCount, infos, [=](unsigned* count, nvmlProcessInfo_v2_t* out) {
    return real<fn::nvmlDeviceGetComputeRunningProcesses_v2>(device, count, out);
  });
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_t* infos) noexcept {
  return processes_of_slice(device, infoCount, infos, [=](unsigned* count, nvmlProcessInfo_t* out) {
    return real<fn::nvmlDeviceGetComputeRunningProcesses_v3>(device, count, out);
  });
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                   nvmlProcessInfo_v1_t* infos) noexcept {
  return processes_of_slice(device, infoCount, infos, [=](unsigned* count, nvmlProcessInfo_v1_t* out) {
    return real<fn::nvmlDeviceGetGraphicsRunningProcesses>(device, count, out);
  });
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                      nvmlProcessInfo_v2_t* infos) noexcept {
  return processes_of_slice(device, infoCount, infos, [=](unsigned* count, nvmlProcessInfo_v2_t* out) {
    return real<fn::nvmlDeviceGetGraphicsRunningProcesses_v2>(device, count, out);
  });
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                      nvmlProcessInfo_t* infos) noexcept {
  return processes_of_slice(device, infoCount, infos, [=](unsigned* count, nvmlProcessInfo_t* out) {
    return real<fn::nvmlDeviceGetGraphicsRunningProcesses_v3>(device, count, out);
  });
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_v1_t* infos) noexcept {
  return processes_of_slice(device, infoCount, infos, [=](unsigned* count, nvmlProcessInfo_v1_t* out) {
    return real<fn::nvmlDeviceGetMPSComputeRunningProcesses>(device, count, out);
  });
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                        nvmlProcessInfo_v2_t* infos) noexcept {
  return processes_of_slice(device, infoCount, infos, [=](unsigned* count, nvmlProcessInfo_v2_t* out) {
    return real<fn::nvmlDeviceGetMPSComputeRunningProcesses_v2>(device, count, out);
  });
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                        nvmlProcessInfo_t* infos) noexcept {
  return processes_of_slice(device, infoCount, infos, [=](unsigned* count, nvmlProcessInfo_t* out) {
    return real<fn::nvmlDeviceGetMPSComputeRunningProcesses_v3>(device, count, out);
  });
}

}  // namespace hook
