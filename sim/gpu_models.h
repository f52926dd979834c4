// SPDX-License-Identifier: Apache-2.0
//
// The GPUs that the simulator can be. Figures are from NVIDIA's data sheets and CUDA's compute-capability
// tables.
#pragma once

#include <cstdint>

namespace sim {

struct GpuModel {
  const char* key;          // as in `simgpu --gpu h100`
  const char* name;         // as cuDeviceGetName and NVML say it
  uint64_t memory_bytes;    // cuDeviceTotalMem
  uint64_t reserved_bytes;  // NVML's total is memory_bytes + reserved_bytes
  int sm_count;
  int cc_major, cc_minor;
  int threads_per_sm;
  int blocks_per_sm;
  int shared_per_sm_bytes, shared_per_block_optin_bytes;
  int registers_per_sm;
  int l2_bytes;
  int clock_khz, memory_clock_khz, bus_width_bits;
  int power_limit_mw;
};

const GpuModel* find_gpu_model(const char* key);  // nullptr: no such model
int gpu_model_count();
const GpuModel& gpu_model(int index);

}  // namespace sim
