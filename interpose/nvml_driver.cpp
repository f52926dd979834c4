// SPDX-License-Identifier: Apache-2.0
#include "interpose/nvml_driver.h"

#include "generated/nvml-interpose/names.inc"
#include "interpose/real_library.h"

namespace hook {
namespace {

nvmlReturn_t library_not_found() { return NVML_ERROR_LIBRARY_NOT_FOUND; }
nvmlReturn_t function_not_found() { return NVML_ERROR_FUNCTION_NOT_FOUND; }

constinit RealLibrary library("libnvidia-ml.so.1");
// As in driver.cpp: a call that found none does not make every later call search again.
constinit std::atomic<bool> library_was_missing = false;

const link_map* open_library() {
  if (const link_map* map = library.adopt()) return map;
  if (library_was_missing.load(std::memory_order_relaxed)) return nullptr;
  char path[kPathBytes];
  const link_map* map = library.find(nullptr, nullptr, path) ? library.open(path) : nullptr;
  if (map == nullptr) library_was_missing.store(true, std::memory_order_relaxed);
  return map;
}

}  // namespace
}  // namespace hook

void* cuslice_nvml_resolve_slot(uint32_t index) noexcept {
  const link_map* map = hook::open_library();
  if (map == nullptr) return reinterpret_cast<void*>(&hook::library_not_found);
  void* function =
      hook::find_symbol(hook::object_of(map), nvml_table::kNames + nvml_table::kExportName[index]);
  if (function == nullptr) function = reinterpret_cast<void*>(&hook::function_not_found);
  __atomic_store_n(&cuslice_nvml_slots[index], function, __ATOMIC_RELAXED);
  return function;
}
