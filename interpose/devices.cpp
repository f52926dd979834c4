// SPDX-License-Identifier: Apache-2.0
//
// Which GPU of which slice a CUdevice is.
#include <string.h>

#include "interpose/driver.h"
#include "interpose/session.h"

namespace hook {
namespace {

constexpr int kDevices = 128;  // ordinals that are remembered; more are asked for each time

// 0: not asked yet; kInNoSlice; else kFirst + slice * kMaxGpus + gpu.
constexpr uint16_t kInNoSlice = 1;
constexpr uint16_t kFirst = 2;
constinit std::atomic<uint16_t> known_devices[kDevices] = {};

uint16_t find_device(int device) {
  uint8_t uuid[16];
  if (!uuid_of_device(device, uuid)) return 0;
  for (int slice = 0; slice < session().slice_count; slice++) {
    const AttachedSlice& attached = session().slices[slice];
    for (int gpu = 0; gpu < attached.gpu_count; gpu++) {
      if (memcmp(attached.limits->gpus[gpu].uuid, uuid, sizeof uuid) == 0) {
        return static_cast<uint16_t>(kFirst + slice * shm::kMaxGpus + gpu);
      }
    }
  }
  return kInNoSlice;
}

uint16_t known_device(int device) {
  const bool remembered = device >= 0 && device < kDevices;
  uint16_t known = remembered ? known_devices[device].load(std::memory_order_relaxed) : 0;
  if (known == 0) [[unlikely]] {
    known = find_device(device);
    if (remembered) known_devices[device].store(known, std::memory_order_relaxed);
  }
  return known;
}

}  // namespace

bool uuid_of_device(int device, uint8_t (&uuid)[16]) {
  CUuuid found;
  // The second form tells of a MIG instance where there is one.
  const CUresult result = driver_has(fn::cuDeviceGetUuid_v2) ? real<fn::cuDeviceGetUuid_v2>(&found, device)
                                                             : real<fn::cuDeviceGetUuid>(&found, device);
  if (result != CUDA_SUCCESS) return false;
  memcpy(uuid, &found, sizeof uuid);
  return true;
}

SliceGpu gpu_of_device(int device) {
  const uint16_t known = known_device(device);
  if (known < kFirst) return {};
  return {&session().slices[(known - kFirst) / shm::kMaxGpus], (known - kFirst) % shm::kMaxGpus};
}

bool is_off_limits(int device) { return !session().in_container && known_device(device) == kInNoSlice; }

SliceGpu gpu_of_current_context() {
  CUdevice device;
  if (real<fn::cuCtxGetDevice>(&device) != CUDA_SUCCESS) return {};
  return gpu_of_device(device);
}

void forget_devices() {
  for (auto& known : known_devices) known.store(0, std::memory_order_relaxed);
}

}  // namespace hook
