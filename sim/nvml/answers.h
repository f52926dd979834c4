// SPDX-License-Identifier: Apache-2.0
//
// What the functions of the simulated NVML have in common: the checks that each begins with.
//
// A function that is not defined in this folder is NVML_ERROR_NOT_SUPPORTED; the driver table's generator
// sees to it.
#pragma once

// The un-suffixed functions have the oldest structures, as in the real library; without this, nvml.h would
// rename them.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <cstdio>
#include <cstring>
#include <type_traits>

#include "generated/nvml-sim/declarations.inc"
#include "sim/node.h"

namespace sim {

bool nvml_is_initialized();

nvmlDevice_t handle_of(int device);

// The device of a handle, if NVML is initialized and the handle is one of ours.
nvmlReturn_t find_device(nvmlDevice_t handle, int* device);

// Writes a value, or what a function of the device's index returns, to *out.
template <typename Out, typename Value>
nvmlReturn_t answer(nvmlDevice_t handle, Out* out, Value value) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if constexpr (std::is_invocable_v<Value, int>) {
    *out = static_cast<Out>(value(device));
  } else {
    *out = static_cast<Out>(value);
  }
  return NVML_SUCCESS;
}

inline nvmlReturn_t answer_text(const char* text, char* out, unsigned int length) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(out, text, strlen(text) + 1);
  return NVML_SUCCESS;
}

}  // namespace sim
