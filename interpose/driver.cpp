// SPDX-License-Identifier: Apache-2.0
#include "interpose/driver.h"

#include "generated/interpose/names.inc"

namespace hook {
namespace {

CUresult no_device() { return CUDA_ERROR_NO_DEVICE; }
CUresult not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }

constinit RealLibrary library("libcuda.so.1");
constinit std::atomic<bool> slots_are_filled = false;
// A call found no driver. Looking again at every call would be files opened at every call; dlopen() still
// looks.
constinit std::atomic<bool> driver_was_missing = false;

void fill_slots(const Object& driver) {
  for (uint32_t index = 0; index < driver_table::kFunctionCount; index++) {
    void* function = find_symbol(driver, driver_table::kNames + driver_table::kExportName[index]);
    if (function == nullptr) function = reinterpret_cast<void*>(&not_supported);
    __atomic_store_n(&cuslice_driver_slots[index], function, __ATOMIC_RELAXED);
  }
  // release; pairs with the acquire in open_driver(): whoever sees it set finds every slot filled.
  slots_are_filled.store(true, std::memory_order_release);
}

}  // namespace

RealLibrary& driver_library() { return library; }

bool open_driver() {
  if (slots_are_filled.load(std::memory_order_acquire)) return true;
  const link_map* map = library.adopt();
  if (map == nullptr && !driver_was_missing.load(std::memory_order_relaxed)) {
    char path[kPathBytes];
    if (library.find(nullptr, nullptr, path)) map = library.open(path);
  }
  if (map == nullptr) {
    driver_was_missing.store(true, std::memory_order_relaxed);
    return false;
  }
  fill_slots(object_of(map));
  return true;
}

bool driver_has(uint32_t index) {
  void* function = __atomic_load_n(&cuslice_driver_slots[index], __ATOMIC_RELAXED);
  return function != nullptr && function != reinterpret_cast<void*>(&not_supported);
}

}  // namespace hook

void* cuslice_resolve_slot(uint32_t index) noexcept {
  if (!hook::open_driver()) return reinterpret_cast<void*>(&hook::no_device);
  return __atomic_load_n(&cuslice_driver_slots[index], __ATOMIC_RELAXED);
}
