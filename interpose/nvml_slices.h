// SPDX-License-Identifier: Apache-2.0
//
// The slices of this process, for looking only: no slot is taken, nothing is written, no broker is told.
#pragma once

#include <cstdint>

#include "interpose/nvml_driver.h"
#include "limiter/ledger.h"
#include "shm/layout.h"

namespace hook {

struct SeenSlice {
  const shm::Limits* limits;
  const shm::State* state;
  int gpu_count;
};

struct SeenGpu {
  const SeenSlice* slice = nullptr;
  int index = 0;
  explicit operator bool() const { return slice != nullptr; }
};

enum class Sight : uint8_t {
  kNothing,  // no slice, or none of this GPU: what NVML says is shown as it is
  kSlice,
  kClosed,  // there should be a slice, and it can't be read: nothing is shown
};

// By the GPU's identity as NVML prints it: "GPU-" or "MIG-" and 32 hexadecimal digits in groups.
Sight see_gpu(const char* uuid, SeenGpu* gpu);

Sight see_device(nvmlDevice_t device, SeenGpu* gpu);

// What becomes of NVML's `result` for a device: if it is a slice's, and NVML answered, `show(gpu)` puts the
// slice in the answer's place.
template <typename Show>
nvmlReturn_t show_slice(nvmlReturn_t result, nvmlDevice_t device, Show show) {
  if (result != NVML_SUCCESS) return result;
  SeenGpu gpu;
  const Sight sight = see_device(device, &gpu);
  if (sight == Sight::kClosed) return NVML_ERROR_UNKNOWN;
  return sight == Sight::kSlice ? show(gpu) : result;
}

// The slice's processes on a GPU, for the length of one call.
//
// NVML names a process by its pid on the host, or, where the driver translates, by the one that it has in the
// caller's pid namespace: both are understood. Shown is always the latter; a process that this namespace does
// not see has none, and is not shown.
class Residents {
 public:
  struct Resident {
    uint32_t slot;
    uint32_t pid;  // here
  };

  explicit Residents(const SeenGpu& gpu);

  // The resident that NVML means by `listed`. `lists(pid)`: whether the same answer of NVML has that pid too.
  template <typename Lists>
  bool find(uint32_t listed, Lists lists, Resident* resident) const {
    if (find_by_host_pid(listed, resident)) return true;
    // A pid of somebody else on the host may be the same as one of ours here. But one of ours that holds
    // memory is in the list, under one of its two pids.
    uint32_t host_pid;
    return find_by_own_pid(listed, &host_pid, resident) && charge(resident->slot) != 0 && !lists(host_pid);
  }
  // By the pid that it has here; *host_pid is what NVML may know it by instead.
  bool find_here(uint32_t pid, uint32_t* host_pid, Resident* resident) const;

  // What the slice is charged for the process.
  uint64_t charge(uint32_t slot) const;

 private:
  struct Names;
  template <typename Matches>
  bool find_slot(Matches matches, Names* names, Resident* resident) const;
  bool find_by_host_pid(uint32_t pid, Resident* resident) const;
  bool find_by_own_pid(uint32_t pid, uint32_t* host_pid, Resident* resident) const;
  uint32_t pid_here(const Names& names) const;

  const SeenGpu gpu_;
  const uint64_t pid_namespace_;
};

}  // namespace hook
