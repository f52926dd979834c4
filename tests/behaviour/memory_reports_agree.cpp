// SPDX-License-Identifier: Apache-2.0
//
// memory_reports_agree QUOTA_MIB: everything that tells of memory tells of the slice.
#include <dlfcn.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <unistd.h>

#include "behaviour.h"

namespace {

template <typename Function>
Function* nvml(const char* name) {
  static void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  MUST(library != nullptr);
  void* function = dlsym(library, name);
  MUST(function != nullptr);
  return reinterpret_cast<Function*>(function);
}
#define NVML(function) nvml<decltype(function)>(#function)

}  // namespace

int main(int argc, char** argv) {
  const uint64_t quota = argument(argc, argv, 1) * kMiB;
  const CUdevice device = start();
  CUdeviceptr pointer;
  OK(cuMemAlloc(&pointer, 256 * kMiB));

  size_t free, total, device_total;
  OK(cuMemGetInfo(&free, &total));
  OK(cuDeviceTotalMem(&device_total, device));
  MUST(total == quota && device_total == quota);
  const uint64_t used = quota - free;
  MUST(used >= 256 * kMiB);

  nvmlDevice_t handle;
  MUST_BE(NVML(nvmlInit_v2)(), NVML_SUCCESS);
  MUST_BE(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &handle), NVML_SUCCESS);
  nvmlMemory_t memory;
  MUST_BE(NVML(nvmlDeviceGetMemoryInfo)(handle, &memory), NVML_SUCCESS);
  MUST(memory.total == quota && memory.free == free && memory.used == used);
  nvmlMemory_v2_t memory_v2 = {};
  memory_v2.version = nvmlMemory_v2;
  MUST_BE(NVML(nvmlDeviceGetMemoryInfo_v2)(handle, &memory_v2), NVML_SUCCESS);
  MUST(memory_v2.total == quota && memory_v2.free == free && memory_v2.used == used);
  memory_v2.version = 77;
  MUST_BE(NVML(nvmlDeviceGetMemoryInfo_v2)(handle, &memory_v2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);

  nvmlBAR1Memory_t window;
  MUST_BE(NVML(nvmlDeviceGetBAR1MemoryInfo)(handle, &window), NVML_SUCCESS);
  MUST(window.bar1Total == quota && window.bar1Used <= used &&
       window.bar1Free == window.bar1Total - window.bar1Used);
  nvmlDeviceAttributes_t attributes;
  MUST_BE(NVML(nvmlDeviceGetAttributes_v2)(handle, &attributes), NVML_SUCCESS);
  MUST(attributes.memorySizeMB == quota / kMiB);

  // Each may be left out, as the driver has it.
  size_t alone = 0;
  OK(cuMemGetInfo(&alone, nullptr));
  MUST(alone == free);
  OK(cuMemGetInfo(nullptr, &alone));
  MUST(alone == quota);
  OK(cuMemGetInfo(nullptr, nullptr));

  // Only this process is in the slice, whatever else is on the GPU.
  unsigned count = 0;
  MUST_BE(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(handle, &count, nullptr),
          NVML_ERROR_INSUFFICIENT_SIZE);
  MUST(count == 1);
  nvmlProcessInfo_t infos[4];
  count = 4;
  MUST_BE(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(handle, &count, infos), NVML_SUCCESS);
  MUST(count == 1 && infos[0].pid == static_cast<unsigned>(getpid()) && infos[0].usedGpuMemory == used);
  nvmlProcessInfo_v1_t infos_v1[4];
  count = 4;
  MUST_BE(NVML(nvmlDeviceGetComputeRunningProcesses)(handle, &count, infos_v1), NVML_SUCCESS);
  MUST(count == 1 && infos_v1[0].pid == static_cast<unsigned>(getpid()));
  count = 4;
  MUST_BE(NVML(nvmlDeviceGetGraphicsRunningProcesses_v3)(handle, &count, infos), NVML_SUCCESS);
  MUST(count == 0);
  return finish();
}
