// SPDX-License-Identifier: Apache-2.0
//
// The devices that this process sees: those of the node, as CUDA_VISIBLE_DEVICES chooses and orders them, and
// whether cuInit has run. A CUdevice is an index into this list; the node knows the device by another index.
#pragma once

#include <memory>

#include "sim/driver/api.h"
#include "sim/node.h"

namespace sim {

// CUDA_SUCCESS after cuInit; CUDA_ERROR_NOT_INITIALIZED before it, and for ever in a child forked after it.
CUresult ready();

int visible_devices();
bool valid_device(CUdevice device);
int node_device(CUdevice device);  // Precondition: valid_device
const GpuModel& device_model(CUdevice device);

// What every call fails with that needs a device which is lost, or has ended this process' work by an error.
CUresult device_fault(CUdevice device);

// Needs a switch between the GPUs, which the boards of these have.
inline bool supports_multicast(CUdevice device) {
  return device_model(device).cc_major == 9 || device_model(device).cc_major == 10;
}

// Entry condition of every function that takes a device.
inline CUresult check_device(CUdevice device) {
  if (CUresult error = ready()) return error;
  return valid_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace sim
