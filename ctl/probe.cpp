// SPDX-License-Identifier: Apache-2.0
//
// Runs in a slice, under the preloaded libraries, as any program would: finds the driver in every way that
// programs use, and takes what the slice should refuse.
#include <cuda.h>
#include <dlfcn.h>
#include <nvml.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "broker/clock.h"
#include "broker/nvml.h"
#include "ctl/commands.h"
#include "ctl/snapshot.h"

namespace ctl {
namespace {

using nlohmann::json;

constexpr char kCudaLibrary[] = "libcuda.so.1";
constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";
constexpr char kOurCuda[] = "libcuslice-cuda";
constexpr char kOurNvml[] = "libcuslice-nvml";

// The file that holds the code at an address.
std::string file_of(const void* address) {
  Dl_info info;
  return address != nullptr && dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

json reaches(const void* address, const char* library) {
  const std::string file = file_of(address);
  return {{"ok", file.find(library) != std::string::npos},
          {"detail", address == nullptr ? "not found" : file}};
}

// The driver functions that the probe calls, from the handle that a program would get.
struct Cuda {
  // RTLD_GLOBAL: dlsym(RTLD_DEFAULT) finds a library that was opened at run time only then, with us or
  // without.
  void* handle = dlopen(kCudaLibrary, RTLD_NOW | RTLD_GLOBAL);

  template <typename Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(handle == nullptr ? nullptr : dlsym(handle, name));
  }
#define CUSLICE_DRIVER_FUNCTION(name) decltype(&::name) name = find<decltype(&::name)>(#name)
  CUSLICE_DRIVER_FUNCTION(cuInit);
  CUSLICE_DRIVER_FUNCTION(cuDeviceGetCount);
  CUSLICE_DRIVER_FUNCTION(cuDeviceGetUuid_v2);
  CUSLICE_DRIVER_FUNCTION(cuDeviceTotalMem_v2);
  CUSLICE_DRIVER_FUNCTION(cuDevicePrimaryCtxRetain);
  CUSLICE_DRIVER_FUNCTION(cuCtxSetCurrent);
  CUSLICE_DRIVER_FUNCTION(cuMemGetInfo_v2);
  CUSLICE_DRIVER_FUNCTION(cuMemAlloc_v2);
  CUSLICE_DRIVER_FUNCTION(cuMemFree_v2);
  CUSLICE_DRIVER_FUNCTION(cuMemsetD8Async);
  CUSLICE_DRIVER_FUNCTION(cuStreamSynchronize);
  CUSLICE_DRIVER_FUNCTION(cuGetProcAddress_v2);
#undef CUSLICE_DRIVER_FUNCTION
};

void probe_ways_in(const Cuda& cuda, const std::string& driver_path, json* result) {
  constexpr char kName[] = "cuMemAlloc_v2";
  (*result)["dlopen"] = reaches(cuda.find<void*>(kName), kOurCuda);
  (*result)["dlsym"] = reaches(dlsym(RTLD_DEFAULT, kName), kOurCuda);
  if (!driver_path.empty()) {
    void* const handle = dlopen(driver_path.c_str(), RTLD_NOW);
    (*result)["dlopen_path"] = reaches(handle == nullptr ? nullptr : dlsym(handle, kName), kOurCuda);
  }
  void* function = nullptr;
  if (cuda.cuGetProcAddress_v2 != nullptr) {
    CUdriverProcAddressQueryResult status;
    cuda.cuGetProcAddress_v2("cuMemAlloc", &function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  }
  (*result)["cuGetProcAddress"] = reaches(function, kOurCuda);
  void* const nvml = dlopen(kNvmlLibrary, RTLD_NOW);
  (*result)["nvml"] = reaches(nvml == nullptr ? nullptr : dlsym(nvml, "nvmlDeviceGetMemoryInfo"), kOurNvml);
}

json same_bytes(uint64_t seen, uint64_t expected) {
  return {{"ok", seen == expected},
          {"detail",
           "it says " + broker::format_bytes(seen) + ", the slice has " + broker::format_bytes(expected)}};
}

json driver_error(const char* function, CUresult error) {
  return {{"ok", false}, {"detail", std::string(function) + " answers error " + std::to_string(error)}};
}

// The ordinal that the slice's GPU has in this process; -1: it is not there.
CUdevice find_device(const Cuda& cuda, const std::string& uuid_text) {
  int count = 0;
  if (cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS) return -1;
  for (CUdevice device = 0; device < count; ++device) {
    CUuuid uuid;
    uint8_t bytes[16];
    if (cuda.cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS) continue;
    memcpy(bytes, uuid.bytes, sizeof bytes);
    if (broker::format_uuid(bytes) == uuid_text) return device;
  }
  return -1;
}

void probe_nvml(const GpuView& gpu, json* result) {
  void* const library = dlopen(kNvmlLibrary, RTLD_NOW);
  const auto find = [&]<typename Function>(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(library == nullptr ? nullptr : dlsym(library, name));
    return *function != nullptr;
  };
  decltype(&::nvmlInit_v2) init;
  decltype(&::nvmlDeviceGetHandleByUUID) by_uuid;
  decltype(&::nvmlDeviceGetMemoryInfo) memory_info;
  nvmlDevice_t device = nullptr;
  nvmlMemory_t memory = {};
  const bool read = find("nvmlInit_v2", &init) && find("nvmlDeviceGetHandleByUUID", &by_uuid) &&
                    find("nvmlDeviceGetMemoryInfo", &memory_info) && init() == NVML_SUCCESS &&
                    by_uuid(gpu.uuid.c_str(), &device) == NVML_SUCCESS &&
                    memory_info(device, &memory) == NVML_SUCCESS;
  (*result)["nvml_memory"] = read ? same_bytes(memory.total, gpu.quota_bytes)
                                  : json{{"ok", false}, {"detail", "NVML does not answer for " + gpu.uuid}};
}

// Takes memory until it is refused; one more must be possible after one is given back.
json probe_refusal(const Cuda& cuda, const GpuView& gpu) {
  constexpr size_t kChunk = 16ull << 20;
  std::vector<CUdeviceptr> taken;
  CUresult error = CUDA_SUCCESS;
  while (taken.size() * kChunk <= gpu.quota_bytes) {
    CUdeviceptr pointer = 0;
    error = cuda.cuMemAlloc_v2(&pointer, kChunk);
    if (error != CUDA_SUCCESS) break;
    taken.push_back(pointer);
  }
  const uint64_t bytes = taken.size() * kChunk;
  bool again = false;
  if (!taken.empty()) {
    cuda.cuMemFree_v2(taken.back());
    taken.pop_back();
    CUdeviceptr pointer = 0;
    again = cuda.cuMemAlloc_v2(&pointer, kChunk) == CUDA_SUCCESS;
    if (again) taken.push_back(pointer);
  }
  for (const CUdeviceptr pointer : taken) cuda.cuMemFree_v2(pointer);
  return {{"ok", error == CUDA_ERROR_OUT_OF_MEMORY && bytes <= gpu.quota_bytes && again},
          {"detail",
           "took " + broker::format_bytes(bytes) + " of " + broker::format_bytes(gpu.quota_bytes) +
               ", then error " + std::to_string(error) +
               (again ? "; freed memory could be taken again" : "; freed memory could NOT be taken again")}};
}

// Keeps the GPU busy for a while and looks at what the slice was charged.
json probe_share(const Cuda& cuda, const std::string& directory) {
  constexpr uint64_t kRunNs = 1'500'000'000;
  constexpr size_t kBytes = 64ull << 20;
  CUdeviceptr pointer = 0;
  const CUresult error = cuda.cuMemAlloc_v2(&pointer, kBytes);
  if (error != CUDA_SUCCESS) return driver_error("cuMemAlloc_v2", error);
  SliceView before, after;
  static_cast<void>(read_slice(directory, &before));
  uint64_t launches = 0;
  for (const uint64_t end_ns = broker::now_ns() + kRunNs; broker::now_ns() < end_ns; ++launches) {
    cuda.cuMemsetD8Async(pointer, 0, kBytes, nullptr);
    if (launches % 16 == 15) cuda.cuStreamSynchronize(nullptr);
  }
  cuda.cuStreamSynchronize(nullptr);
  static_cast<void>(read_slice(directory, &after));
  cuda.cuMemFree_v2(pointer);
  const double received = received_percent(before, after);
  const uint64_t turns = after.turns - before.turns;
  return {
      {"ok", turns > 0 && received > 0 && received <= after.compute_limit_percent + 5.0},
      {"detail", std::to_string(launches) + " launches in " + std::to_string(turns) + " turns, " +
                     std::to_string(std::lround(received)) + " % of the GPU's time; the slice's limit is " +
                     std::to_string(after.compute_limit_percent) + " %"}};
}

void probe_limits(const Cuda& cuda, const std::string& directory, json* result) {
  SliceView slice;
  if (const broker::Status status = read_slice(directory, &slice); !status.ok()) {
    (*result)["attach"] = {{"ok", false}, {"detail", status.text}};
    return;
  }
  const GpuView& gpu = slice.gpus.at(0);
  CUresult error = cuda.cuInit(0);
  (*result)["attach"] = {{"ok", error == CUDA_SUCCESS},
                         {"detail", "cuInit answers " + std::to_string(error)}};
  if (error != CUDA_SUCCESS) return;

  const CUdevice device = find_device(cuda, gpu.uuid);
  size_t total = 0, free = 0;
  if (device >= 0) error = cuda.cuDeviceTotalMem_v2(&total, device);
  (*result)["total"] = device >= 0 && error == CUDA_SUCCESS ? same_bytes(total, gpu.quota_bytes)
                                                            : driver_error("cuDeviceTotalMem_v2", error);
  probe_nvml(gpu, result);
  if (device < 0) return;

  CUcontext context = nullptr;
  error = cuda.cuDevicePrimaryCtxRetain(&context, device);
  if (error == CUDA_SUCCESS) error = cuda.cuCtxSetCurrent(context);
  if (error != CUDA_SUCCESS) {
    (*result)["context"] = driver_error("cuDevicePrimaryCtxRetain", error);
    return;
  }
  error = cuda.cuMemGetInfo_v2(&free, &total);
  (*result)["mem_get_info"] =
      error == CUDA_SUCCESS ? same_bytes(total, gpu.quota_bytes) : driver_error("cuMemGetInfo_v2", error);
  (*result)["refusal"] = probe_refusal(cuda, gpu);
  (*result)["share"] = probe_share(cuda, directory);
}

}  // namespace

int probe(const std::string& driver_path) {
  json result = json::object();
  const char* const directory = getenv("CUSLICE_SLICE");
  const Cuda cuda;
  if (directory == nullptr || cuda.handle == nullptr || cuda.cuInit == nullptr) {
    result["attach"] = {
        {"ok", false},
        {"detail", directory == nullptr ? "not in a slice" : "no driver: " + std::string(kCudaLibrary)}};
  } else {
    probe_ways_in(cuda, driver_path, &result);
    probe_limits(cuda, directory, &result);
  }
  std::cout << result.dump() << "\n";
  return 0;
}

}  // namespace ctl
