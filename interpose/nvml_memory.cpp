// SPDX-License-Identifier: Apache-2.0
//
// How much memory NVML shows: the slice's, and never more than the driver has.
#include <algorithm>

#include "interpose/nvml_slices.h"

namespace hook {
namespace {

using Bytes = unsigned long long;

template <typename Show>
nvmlReturn_t show_usage(nvmlReturn_t result, nvmlDevice_t device, Show show) {
  return show_slice(result, device, [=](const SeenGpu& gpu) {
    show(limiter::usage(*gpu.slice->limits, *gpu.slice->state, gpu.index));
    return NVML_SUCCESS;
  });
}

// `Memory` is any version of NVML's struct.
template <typename Memory>
void show_memory(const limiter::Usage& usage, Memory* memory) {
  memory->free = std::min<Bytes>(memory->free, usage.free_bytes());
  memory->total = std::min<Bytes>(memory->total, usage.quota_bytes);
  memory->used = std::min<Bytes>(memory->total, usage.used_bytes());
}

template <typename Attributes>
nvmlReturn_t attributes_of_slice(nvmlReturn_t result, nvmlDevice_t device, Attributes* attributes) {
  return show_usage(result, device, [=](const limiter::Usage& usage) {
    attributes->memorySizeMB = std::min<Bytes>(attributes->memorySizeMB, usage.quota_bytes >> 20);
  });
}

}  // namespace

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) noexcept {
  return show_usage(real<fn::nvmlDeviceGetMemoryInfo>(device, memory), device,
                    [=](const limiter::Usage& usage) { show_memory(usage, memory); });
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) noexcept {
  return show_usage(real<fn::nvmlDeviceGetMemoryInfo_v2>(device, memory), device,
                    [=](const limiter::Usage& usage) {
                      show_memory(usage, memory);
                      // What the driver reserves is the whole GPU's, and in nobody's slice.
                      memory->reserved = 0;
                    });
}

// The window through which the host sees the GPU's memory. No more of the slice's can be seen through it than
// the slice has and uses.
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t* bar1Memory) noexcept {
  return show_usage(real<fn::nvmlDeviceGetBAR1MemoryInfo>(device, bar1Memory), device,
                    [=](const limiter::Usage& usage) {
                      bar1Memory->bar1Total = std::min<Bytes>(bar1Memory->bar1Total, usage.quota_bytes);
                      bar1Memory->bar1Used =
                          std::min<Bytes>({bar1Memory->bar1Used, usage.used_bytes(), bar1Memory->bar1Total});
                      bar1Memory->bar1Free = bar1Memory->bar1Total - bar1Memory->bar1Used;
                    });
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) noexcept {
  return attributes_of_slice(real<fn::nvmlDeviceGetAttributes>(device, attributes), device, attributes);
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) noexcept {
  return attributes_of_slice(real<fn::nvmlDeviceGetAttributes_v2>(device, attributes), device, attributes);
}

// With confidential computing all of the GPU's memory is protected, but for what its owner excepts.
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device,
                                                          nvmlMemory_t* memory) noexcept {
  return show_usage(real<fn::nvmlDeviceGetConfComputeProtectedMemoryUsage>(device, memory), device,
                    [=](const limiter::Usage& usage) { show_memory(usage, memory); });
}
nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device,
                                                 nvmlConfComputeMemSizeInfo_t* memInfo) noexcept {
  return show_usage(real<fn::nvmlDeviceGetConfComputeMemSizeInfo>(device, memInfo), device,
                    [=](const limiter::Usage& usage) {
                      memInfo->protectedMemSizeKib =
                          std::min<Bytes>(memInfo->protectedMemSizeKib, usage.quota_bytes >> 10);
                      memInfo->unprotectedMemSizeKib =
                          std::min<Bytes>(memInfo->unprotectedMemSizeKib, usage.quota_bytes >> 10);
                    });
}

}  // namespace hook
