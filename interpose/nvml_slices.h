// SPDX-License-Identifier: Apache-2.0
//
// The slices of this process, for looking only: no slot is taken, nothing is written, no broker is told.
#pragma once

#include <cstdint>

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

// Whether the process that NVML knows as `host_pid` is one of the slice, and what it is called in this pid
// namespace (its host pid if it is in another one).
bool process_of_slice(const SeenSlice& slice, uint32_t host_pid, uint32_t* slot, uint32_t* pid_here);

}  // namespace hook
