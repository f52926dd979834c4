// SPDX-License-Identifier: Apache-2.0
//
// The true NVML, as driver.h is the true driver: `real<fn::nvmlDeviceGetUUID>(device, text, length)`. A
// function that it lacks answers NVML_ERROR_FUNCTION_NOT_FOUND, and all do NVML_ERROR_LIBRARY_NOT_FOUND where
// there is none.
#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS  // every variant under its own name
#include <nvml.h>

#include <cstdint>

#include "generated/nvml-interpose/nvml_counts.h"

extern "C" {
[[gnu::visibility("hidden")]] extern void* cuslice_nvml_slots[nvml_table::kFunctionCount];
[[gnu::visibility("hidden")]] void* cuslice_nvml_resolve_slot(uint32_t index) noexcept;
}

namespace hook {

#include "generated/nvml-interpose/hooks.inc"

namespace fn {
#define NVML_ENTRY(name, index, ...) inline constexpr uint32_t name = index;
#include "generated/nvml-interpose/nvml.inc"
#undef NVML_ENTRY
}  // namespace fn

template <uint32_t index>
struct Signature;
#define NVML_ENTRY(name, index, ...) \
  template <>                        \
  struct Signature<index> {          \
    using Type = __VA_ARGS__;        \
  };
#include "generated/nvml-interpose/nvml.inc"
#undef NVML_ENTRY

template <uint32_t index, typename... Arguments>
inline auto real(Arguments... arguments) {
  void* function = __atomic_load_n(&cuslice_nvml_slots[index], __ATOMIC_RELAXED);
  if (function == nullptr) function = cuslice_nvml_resolve_slot(index);
  return reinterpret_cast<typename Signature<index>::Type*>(function)(arguments...);
}

}  // namespace hook
