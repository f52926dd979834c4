// SPDX-License-Identifier: Apache-2.0
//
// The true driver: `real<fn::cuMemAlloc_v2>(pointer, bytes)` calls its function of that name.
//
// Every export has a forward slot in .bss. It starts empty and needs no relocation; the first call of a
// function fills it. open_driver() fills all of them, so a hook that runs after it may jump through a slot
// unchecked. A function that the driver lacks has a slot too: to a stub that answers
// CUDA_ERROR_NOT_SUPPORTED, or CUDA_ERROR_NO_DEVICE where there is no driver at all.
#pragma once

#define __CUDA_API_VERSION_INTERNAL  // every variant under its own name
#include <cuda.h>
#include <cudaProfiler.h>

#include <cstdint>
#include <utility>

#include "generated/interpose/driver_counts.h"
#include "interpose/real_library.h"

extern "C" {
// Written once each, from nullptr; read and written atomically.
[[gnu::visibility("hidden")]] extern void* cuslice_driver_slots[driver_table::kFunctionCount];
// Where function `index` of the table is. Never nullptr. Opens the driver at the first call.
[[gnu::visibility("hidden")]] void* cuslice_resolve_slot(uint32_t index) noexcept;
}

namespace hook {

// The hooks, by the driver's own names; each definition is the export itself. A declared hook that nobody
// wrote stops the link by name.
#include "generated/interpose/hooks.inc"

namespace fn {
#define DRIVER_ENTRY(name, index, ...) inline constexpr uint32_t name = index;
#include "generated/interpose/driver.inc"
#undef DRIVER_ENTRY
}  // namespace fn

template <uint32_t index>
struct Signature;
#define DRIVER_ENTRY(name, index, ...) \
  template <>                          \
  struct Signature<index> {            \
    using Type = __VA_ARGS__;          \
  };
#include "generated/interpose/driver.inc"
#undef DRIVER_ENTRY

// The true function, or nullptr before the driver was opened.
template <uint32_t index>
typename Signature<index>::Type* driver_slot() {
  void* function = __atomic_load_n(&cuslice_driver_slots[index], __ATOMIC_RELAXED);
  return reinterpret_cast<typename Signature<index>::Type*>(function);
}

template <uint32_t index, typename... Arguments>
inline auto real(Arguments... arguments) {
  auto* function = driver_slot<index>();
  if (function == nullptr) [[unlikely]] {
    function = reinterpret_cast<typename Signature<index>::Type*>(cuslice_resolve_slot(index));
  }
  return function(arguments...);
}

RealLibrary& driver_library();
// The driver is open and all slots are filled, now or already. false: there is none, or it can't be opened.
bool open_driver();
// Whether the driver has this function. Precondition: open_driver().
bool driver_has(uint32_t index);

}  // namespace hook
