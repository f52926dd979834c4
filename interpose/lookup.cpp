// SPDX-License-Identifier: Apache-2.0
//
// cuGetProcAddress: the driver is asked first, with the caller's version and flags. What it found is replaced
// by our export of exactly that function, if we have a hook for it; what we don't know, and every refusal,
// stays the driver's.
#include <string.h>

#include "generated/interpose/names.inc"
#include "interpose/driver.h"
#include "interpose/loader.h"
#include "interpose/session.h"

namespace hook {
namespace {

struct LookupRow {
  uint16_t base_name;
  uint16_t version;
  uint16_t per_thread;
  uint16_t index;
};
constexpr LookupRow kLookups[] = {
#define DRIVER_LOOKUP(...) {__VA_ARGS__},
#include "generated/interpose/lookup.inc"
#undef DRIVER_LOOKUP
};

enum class Policy : uint8_t {
  kPass,
  kOverhead,
  kCharge,
  kMeasure,
  kRelease,
  kHold,
  kBar,
  kReport,
  kLaunch,
  kLookup,
  kLifecycle,
  kCapture
};
constexpr Policy kPolicies[] = {
#define DRIVER_FUNCTION(index, name, base, policy) Policy::k##policy,
#include "generated/interpose/functions.inc"
#undef DRIVER_FUNCTION
};

constexpr bool has_hook(Policy policy) { return policy != Policy::kPass && policy != Policy::kOverhead; }

constexpr int kNotInTable = -1;

int base_index(const char* symbol) {
  int low = 0;
  int high = driver_table::kBaseCount;
  while (low < high) {
    const int middle = (low + high) / 2;
    const int order = strcmp(driver_table::kNames + driver_table::kBaseName[middle], symbol);
    if (order == 0) return middle;
    if (order < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return kNotInTable;
}

// The export that the driver means by `found`. Its address says so if the driver hands out the addresses that
// it exports; else the rule of cuGetProcAddress: the newest not above the version asked for, of the stream
// mode asked for.
const LookupRow* row_of(int base, const void* found, int version, cuuint64_t flags) {
  const LookupRow* const begin = kLookups + driver_table::kBaseFirstLookup[base];
  const LookupRow* const end = kLookups + driver_table::kBaseFirstLookup[base + 1];
  for (const LookupRow* row = begin; row != end; row++) {
    if (__atomic_load_n(&cuslice_driver_slots[row->index], __ATOMIC_RELAXED) == found) return row;
  }
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const LookupRow* best = nullptr;
  for (const LookupRow* row = begin; row != end; row++) {
    if (row->version > version || (row->per_thread != 0 && !per_thread)) continue;
    // In the per-thread mode a function without a form for it is the plain one.
    if (best != nullptr && per_thread && best->per_thread != 0 && row->per_thread == 0) continue;
    best = row;
  }
  return best;
}

void* ours_for(const char* symbol, void* found, int version, cuuint64_t flags) {
  const int base = base_index(symbol);
  if (base == kNotInTable) {
    note_unknown_function(symbol);
    return found;
  }
  const LookupRow* row = row_of(base, found, version, flags);
  if (row == nullptr || !has_hook(kPolicies[row->index])) return found;
  void* own = find_symbol(own_object(), driver_table::kNames + driver_table::kExportName[row->index]);
  return own != nullptr ? own : found;
}

CUresult replaced(CUresult result, const char* symbol, void** function, int version, cuuint64_t flags) {
  if (result == CUDA_SUCCESS && symbol != nullptr && function != nullptr && *function != nullptr) {
    *function = ours_for(symbol, *function, version, flags);
  }
  return result;
}

}  // namespace

CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) noexcept {
  const CUresult result = real<fn::cuGetProcAddress>(symbol, pfn, cudaVersion, flags);
  return replaced(result, symbol, pfn, cudaVersion, flags);
}

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) noexcept {
  const CUresult result = real<fn::cuGetProcAddress_v2>(symbol, pfn, cudaVersion, flags, symbolStatus);
  return replaced(result, symbol, pfn, cudaVersion, flags);
}

}  // namespace hook
