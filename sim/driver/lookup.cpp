// SPDX-License-Identifier: Apache-2.0
//
// cuGetProcAddress, and what an export does that is not written.
#include <algorithm>
#include <cstring>

#include "generated/sim/driver_counts.h"
#include "generated/sim/names.inc"
#include "sim/driver/device.h"
#include "sim/driver/log.h"

extern "C" {
extern void* const sim_driver_exports[] __attribute__((visibility("hidden")));
__attribute__((visibility("hidden"))) CUresult sim_unimplemented(uint32_t index);
}

namespace sim {
namespace {

struct Row {
  uint16_t base;
  int version;
  int per_thread;
  uint16_t index;
};

constexpr Row kRows[] = {
#define DRIVER_LOOKUP(base, version, per_thread, index) {base, version, per_thread, index},
#include "generated/sim/lookup.inc"
#undef DRIVER_LOOKUP
};

const char* text(uint16_t offset) { return driver_table::kNames + offset; }

// The newest form of a function that a caller of that version knows and this driver has; `lacking` says that
// all forms are newer.
const Row* find(const char* name, int version, bool per_thread, bool* lacking) {
  const auto* end = driver_table::kBaseName + driver_table::kBaseCount;
  const auto* base =
      std::lower_bound(driver_table::kBaseName, end, name,
                       [](uint16_t offset, const char* wanted) { return strcmp(text(offset), wanted) < 0; });
  *lacking = false;
  if (base == end || strcmp(text(*base), name) != 0) return nullptr;
  const auto position = static_cast<size_t>(base - driver_table::kBaseName);
  const int driver_version = static_cast<int>(Node::get().settings().driver_version);
  const Row* plain = nullptr;
  const Row* own_stream = nullptr;
  for (size_t i = driver_table::kBaseFirstLookup[position]; i < driver_table::kBaseFirstLookup[position + 1];
       ++i) {
    const Row& row = kRows[i];
    if (row.version > driver_version) continue;
    if (row.version > version) {
      *lacking = true;
      continue;
    }
    (row.per_thread != 0 ? own_stream : plain) = &row;  // rows are sorted by version
  }
  return per_thread && own_stream != nullptr ? own_stream : plain;
}

CUresult look_up(const char* name, void** function, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool lacking;
  const Row* row =
      find(name, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, &lacking);
  *function = row != nullptr ? sim_driver_exports[row->index] : nullptr;
  if (row != nullptr) {
    if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
  }
  // A caller that takes the status reads it; one that does not has only the return value.
  if (status == nullptr) return CUDA_ERROR_NOT_FOUND;
  *status = lacking ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_API(cuGetProcAddress)(const char* name, void** function, int version, cuuint64_t flags) {
  return sim::look_up(name, function, version, flags, nullptr);
}

SIM_API(cuGetProcAddress_v2)
(const char* name, void** function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  return sim::look_up(name, function, version, flags, status);
}

CUresult sim_unimplemented(uint32_t index) {
  sim::report_unsimulated(sim::text(driver_table::kExportName[index]));
  return CUDA_ERROR_NOT_SUPPORTED;
}
