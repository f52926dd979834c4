// SPDX-License-Identifier: Apache-2.0
#include "broker/nvml.h"

#include <dlfcn.h>
#include <nvml.h>

#include <cstdio>

namespace broker {
namespace {

constexpr char kLibraryName[] = "libnvidia-ml.so.1";

// CUDA cores of one multiprocessor; NVML counts cores only.
uint32_t cores_per_multiprocessor(int major, int minor) {
  return major == 6 || major == 7 || (major == 8 && minor == 0) ? 64 : 128;
}

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  bool initialized = false;
  std::vector<nvmlDevice_t> devices;

  decltype(&::nvmlInit_v2) init = nullptr;
  decltype(&::nvmlShutdown) shutdown = nullptr;
  decltype(&::nvmlErrorString) error_string = nullptr;
  decltype(&::nvmlSystemGetDriverVersion) driver_version = nullptr;
  decltype(&::nvmlDeviceGetCount_v2) count = nullptr;
  decltype(&::nvmlDeviceGetHandleByIndex_v2) handle_by_index = nullptr;
  decltype(&::nvmlDeviceGetUUID) uuid = nullptr;
  decltype(&::nvmlDeviceGetName) name = nullptr;
  decltype(&::nvmlDeviceGetMemoryInfo) memory = nullptr;
  decltype(&::nvmlDeviceGetMemoryInfo_v2) memory_v2 = nullptr;                   // R510 and later
  decltype(&::nvmlDeviceGetComputeRunningProcesses_v3) processes = nullptr;      // R510 and later
  decltype(&::nvmlDeviceGetUtilizationRates) utilization = nullptr;              // optional
  decltype(&::nvmlDeviceGetNumGpuCores) cores = nullptr;                         // optional
  decltype(&::nvmlDeviceGetCudaComputeCapability) compute_capability = nullptr;  // optional

  ~Library() {
    if (initialized) shutdown();
    if (handle != nullptr) dlclose(handle);
  }

  template <typename Function>
  void find(const char* symbol, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle, symbol));
  }

  bool find_all() {
    find("nvmlInit_v2", &init);
    find("nvmlShutdown", &shutdown);
    find("nvmlErrorString", &error_string);
    find("nvmlSystemGetDriverVersion", &driver_version);
    find("nvmlDeviceGetCount_v2", &count);
    find("nvmlDeviceGetHandleByIndex_v2", &handle_by_index);
    find("nvmlDeviceGetUUID", &uuid);
    find("nvmlDeviceGetName", &name);
    find("nvmlDeviceGetMemoryInfo", &memory);
    find("nvmlDeviceGetMemoryInfo_v2", &memory_v2);
    find("nvmlDeviceGetComputeRunningProcesses_v3", &processes);
    // Before R510: the same structure under this name.
    if (processes == nullptr) find("nvmlDeviceGetComputeRunningProcesses_v2", &processes);
    find("nvmlDeviceGetUtilizationRates", &utilization);
    find("nvmlDeviceGetNumGpuCores", &cores);
    find("nvmlDeviceGetCudaComputeCapability", &compute_capability);
    return init != nullptr && shutdown != nullptr && error_string != nullptr && driver_version != nullptr &&
           count != nullptr && handle_by_index != nullptr && uuid != nullptr && name != nullptr &&
           memory != nullptr && processes != nullptr;
  }

  uint64_t device_bytes(nvmlDevice_t device) const {
    nvmlMemory_v2_t now = {};
    now.version = nvmlMemory_v2;
    if (memory_v2 != nullptr && memory_v2(device, &now) == NVML_SUCCESS) return now.total - now.reserved;
    nvmlMemory_t old = {};
    return memory(device, &old) == NVML_SUCCESS ? old.total : 0;
  }

  uint32_t multiprocessors(nvmlDevice_t device) const {
    unsigned int core_count = 0;
    int major = 0, minor = 0;
    if (cores == nullptr || compute_capability == nullptr || cores(device, &core_count) != NVML_SUCCESS ||
        compute_capability(device, &major, &minor) != NVML_SUCCESS) {
      return 0;
    }
    return core_count / cores_per_multiprocessor(major, minor);
  }
};

std::string format_uuid(const uint8_t (&uuid)[16]) {
  char text[41];
  snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           uuid[0], uuid[1], uuid[2], uuid[3], uuid[4], uuid[5], uuid[6], uuid[7], uuid[8], uuid[9], uuid[10],
           uuid[11], uuid[12], uuid[13], uuid[14], uuid[15]);
  return text;
}

std::optional<Uuid> parse_uuid(std::string_view text) {
  if (text.starts_with("GPU-")) text.remove_prefix(4);
  Uuid uuid = {};
  size_t digits = 0;
  for (const char c : text) {
    if (c == '-') continue;
    int value;
    if (c >= '0' && c <= '9') {
      value = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      value = c - 'a' + 10;
    } else if (c >= 'A' && c <= 'F') {
      value = c - 'A' + 10;
    } else {
      return std::nullopt;
    }
    if (digits == 32) return std::nullopt;
    uuid[digits / 2] = static_cast<uint8_t>(uuid[digits / 2] << 4 | value);
    ++digits;
  }
  if (digits != 32) return std::nullopt;
  return uuid;
}

Nvml::Nvml() : library_(std::make_unique<Library>()) {}
Nvml::~Nvml() = default;

Status Nvml::open(std::unique_ptr<Nvml>* opened) {
  std::unique_ptr<Nvml> nvml(new Nvml);
  Library& library = *nvml->library_;
  library.handle = dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) {
    return fail(Failure::kSystem, std::string("cannot open ") + kLibraryName + " (" + dlerror() +
                                      "): is NVIDIA's driver installed on this machine?");
  }
  if (!library.find_all()) {
    return fail(Failure::kSystem, std::string(kLibraryName) + " is too old: R450 or later is needed");
  }
  nvmlReturn_t result = library.init();
  if (result != NVML_SUCCESS) {
    return fail(Failure::kSystem, std::string("NVML does not start: ") + library.error_string(result));
  }
  library.initialized = true;

  char version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = "";
  library.driver_version(version, sizeof version);
  nvml->driver_version_ = version;

  unsigned int count = 0;
  result = library.count(&count);
  if (result != NVML_SUCCESS) {
    return fail(Failure::kSystem, std::string("NVML does not count GPUs: ") + library.error_string(result));
  }
  if (count == 0) return fail(Failure::kSystem, "NVML shows no GPU on this machine");

  for (unsigned int index = 0; index < count; ++index) {
    nvmlDevice_t device = nullptr;
    char uuid_text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "";
    result = library.handle_by_index(index, &device);
    if (result == NVML_SUCCESS) result = library.uuid(device, uuid_text, sizeof uuid_text);
    const std::optional<Uuid> uuid = parse_uuid(uuid_text);
    if (result != NVML_SUCCESS || !uuid) {
      return fail(Failure::kSystem, "NVML does not identify GPU " + std::to_string(index) + ": " +
                                        library.error_string(result));
    }
    library.name(device, name, sizeof name);
    library.devices.push_back(device);
    nvml->gpus_.push_back({.index = static_cast<int>(index),
                           .uuid = *uuid,
                           .uuid_text = uuid_text,
                           .name = name,
                           .device_bytes = library.device_bytes(device),
                           .multiprocessors = library.multiprocessors(device)});
  }
  *opened = std::move(nvml);
  return {};
}

bool Nvml::processes(int gpu, std::vector<ProcessMemory>* processes) const {
  std::vector<nvmlProcessInfo_t> infos(64);
  // The number may grow between the call that is told the size and the one that brings it.
  for (int attempt = 0; attempt < 4; ++attempt) {
    unsigned int count = static_cast<unsigned int>(infos.size());
    const nvmlReturn_t result = library_->processes(library_->devices[gpu], &count, infos.data());
    if (result == NVML_ERROR_INSUFFICIENT_SIZE) {
      infos.resize(count + 64);
      continue;
    }
    if (result != NVML_SUCCESS) return false;
    processes->clear();
    for (unsigned int i = 0; i < count; ++i) {
      const bool known = infos[i].usedGpuMemory != static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE);
      processes->push_back({infos[i].pid, known ? infos[i].usedGpuMemory : 0});
    }
    return true;
  }
  return false;
}

uint64_t Nvml::used_bytes(int gpu) const {
  nvmlMemory_t memory = {};
  return library_->memory(library_->devices[gpu], &memory) == NVML_SUCCESS ? memory.used : 0;
}

uint32_t Nvml::busy_percent(int gpu) const {
  nvmlUtilization_t utilization = {};
  if (library_->utilization == nullptr) return 0;
  return library_->utilization(library_->devices[gpu], &utilization) == NVML_SUCCESS ? utilization.gpu : 0;
}

}  // namespace broker
