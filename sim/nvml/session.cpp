// SPDX-License-Identifier: Apache-2.0
//
// Initialisation, errors, and what there is to say of the whole system.
#include <stdlib.h>

#include <atomic>

#include "generated/nvml-sim/names.inc"
#include "sim/nvml/answers.h"

namespace sim {
namespace {

std::atomic<int> g_initialized;

// What is displayed for a CUDA version: the driver branch that brought it.
const char* driver_release(uint32_t cuda_version) {
  constexpr struct {
    uint32_t since;
    const char* release;
  } kReleases[] = {{13010, "590.44.01"}, {13000, "580.65.06"}, {12090, "575.57.08"}, {12080, "570.124.06"},
                   {12060, "560.35.05"}, {12050, "555.42.06"}, {12040, "550.54.15"}, {12030, "545.23.08"},
                   {12020, "535.54.03"}, {12010, "530.30.02"}, {12000, "525.60.13"}, {11000, "450.51.06"}};
  for (const auto& row : kReleases) {
    if (cuda_version >= row.since) return row.release;
  }
  return kReleases[std::size(kReleases) - 1].release;
}

}  // namespace

bool nvml_is_initialized() { return g_initialized.load(std::memory_order_relaxed) > 0; }

}  // namespace sim

using sim::Node;

// --- Of the export table. Answers for every function that nobody here defines.

extern "C" __attribute__((visibility("hidden"))) nvmlReturn_t sim_nvml_unimplemented(uint32_t index) {
  if (getenv("SIMGPU_TRACE")) {
    fprintf(stderr, "simgpu: %s: not supported\n", nvml_table::kNames + nvml_table::kExportName[index]);
  }
  return NVML_ERROR_NOT_SUPPORTED;
}

// --- Sessions.

nvmlReturn_t sim_nvmlInitWithFlags(unsigned int) {
  if (Node::get().device_count() == 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  sim::g_initialized.fetch_add(1, std::memory_order_relaxed);
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlInit() { return sim_nvmlInitWithFlags(0); }
nvmlReturn_t sim_nvmlInit_v2() { return sim_nvmlInitWithFlags(0); }

nvmlReturn_t sim_nvmlShutdown() {
  int count = sim::g_initialized.load(std::memory_order_relaxed);
  while (count > 0) {
    if (sim::g_initialized.compare_exchange_weak(count, count - 1)) return NVML_SUCCESS;
  }
  return NVML_ERROR_UNINITIALIZED;
}

const char* sim_nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
      return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
      return "Timeout";
    case NVML_ERROR_LIBRARY_NOT_FOUND:
      return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
      return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    case NVML_ERROR_MEMORY:
      return "Insufficient Memory";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
      return "Argument version mismatch";
    default:
      return "Unknown Error";
  }
}

// --- The system.

nvmlReturn_t sim_nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  return sim::answer_text(sim::driver_release(Node::get().settings().driver_version), version, length);
}

nvmlReturn_t sim_nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  const uint32_t cuda_version = Node::get().settings().driver_version;
  char text[64];
  snprintf(text, sizeof(text), "%u.%s", cuda_version / 1000, sim::driver_release(cuda_version));
  return sim::answer_text(text, version, length);
}

// Answers without initialisation too, as the real one does.
nvmlReturn_t sim_nvmlSystemGetCudaDriverVersion(int* version) {
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  if (Node::get().device_count() == 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  *version = static_cast<int>(Node::get().settings().driver_version);
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return sim_nvmlSystemGetCudaDriverVersion(version);
}

nvmlReturn_t sim_nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!name || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  char path[40];
  snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
  FILE* file = fopen(path, "re");
  if (!file) return NVML_ERROR_NOT_FOUND;
  const size_t got = fread(name, 1, length - 1, file);
  fclose(file);
  name[got] = 0;
  return got ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t sim_nvmlUnitGetCount(unsigned int* count) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}
