// SPDX-License-Identifier: Apache-2.0
//
// Includes every generated C++ file of the preloaded driver library as its consumers do, and checks what a
// compiler can check. Linked with the thunks it is a library in which every function that passes sums up its
// arguments.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>

#include <cstdint>
#include <string_view>

#include "generated/interpose/driver_counts.h"
#include "generated/interpose/names.inc"

enum class Policy {
  Pass,
  Overhead,
  Charge,
  Measure,
  Release,
  Hold,
  Bar,
  Report,
  Launch,
  Lookup,
  Lifecycle,
  Capture
};

namespace fn {
#define DRIVER_ENTRY(name, index, ...)                \
  struct name {                                       \
    static constexpr std::uint32_t kIndex = index;    \
    using Type = __VA_ARGS__;                         \
    static_assert(__is_same(Type, decltype(::name))); \
  };
#include "generated/interpose/driver.inc"
}  // namespace fn

namespace hook {
#include "generated/interpose/hooks.inc"
}  // namespace hook

struct Row {
  std::uint32_t index;
  std::string_view name;
  std::string_view base;
  Policy policy;
};
#define DRIVER_FUNCTION(index, name, base, policy) {index, #name, #base, Policy::policy},
constexpr Row kRows[] = {
#include "generated/interpose/functions.inc"
};
static_assert(std::size(kRows) == driver_table::kFunctionCount);

struct Lookup {
  std::uint32_t base_name, since, per_thread, index;
};
#define DRIVER_LOOKUP(base_name, since, per_thread, index) {base_name, since, per_thread, index},
constexpr Lookup kLookups[] = {
#include "generated/interpose/lookup.inc"
};
static_assert(std::size(kLookups) == driver_table::kLookupCount);

constexpr std::string_view name_at(std::uint32_t offset) { return driver_table::kNames + offset; }

constexpr bool rows_agree_with_names() {
  for (std::uint32_t i = 0; i < std::size(kRows); ++i) {
    const std::uint32_t base = driver_table::kExportBase[i];
    if (kRows[i].index != i || name_at(driver_table::kExportName[i]) != kRows[i].name) return false;
    if (name_at(driver_table::kBaseName[base]) != kRows[i].base) return false;
    if (i > 0 && kRows[i - 1].name >= kRows[i].name) return false;
  }
  return true;
}
static_assert(rows_agree_with_names());

constexpr bool lookups_of_a_base_are_where_its_index_says() {
  for (std::uint32_t base = 0; base < driver_table::kBaseCount; ++base) {
    const std::uint32_t end = driver_table::kBaseFirstLookup[base + 1];
    for (std::uint32_t i = driver_table::kBaseFirstLookup[base]; i < end; ++i) {
      if (kLookups[i].base_name != driver_table::kBaseName[base]) return false;
      if (driver_table::kExportBase[kLookups[i].index] != base) return false;
    }
  }
  return driver_table::kBaseFirstLookup[driver_table::kBaseCount] == driver_table::kLookupCount;
}
static_assert(lookups_of_a_base_are_where_its_index_says());

static_assert(__is_same(fn::cuMemAlloc_v2::Type, CUresult(CUdeviceptr*, size_t)));
CUresult hook::cuMemAlloc_v2(CUdeviceptr*, size_t) noexcept { return CUDA_ERROR_OUT_OF_MEMORY; }

extern "C" __attribute__((visibility("hidden"))) void* cuslice_driver_slots[driver_table::kFunctionCount];
extern "C" __attribute__((visibility("hidden"))) void* cuslice_resolve_slot(std::uint32_t index);

static int resolved;

// More arguments than fit in registers, of both kinds.
static long sum_of(long a, long b, long c, long d, long e, long f, long g, double x, double y) {
  return resolved + 10 * (a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * long(x) + 9 * long(y));
}

void* cuslice_resolve_slot(std::uint32_t index) {
  // Uses the registers that arguments come in, and an aligned store that a stack off by 8 would not survive.
  alignas(16) volatile double used[4] = {1.0 * index, 2, 3, 4};
  asm volatile("movaps %%xmm0, %0" : "=m"(used) : : "xmm0", "xmm1", "rdi", "rsi", "rdx", "rcx", "r8", "r9");
  ++resolved;
  return cuslice_driver_slots[index] = reinterpret_cast<void*>(&sum_of);
}
