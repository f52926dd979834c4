// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/device.h"

#include <pthread.h>
#include <strings.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "sim/driver/context.h"

namespace sim {
namespace {

enum class State { kFresh, kReady, kForked };
std::atomic<State> state{State::kFresh};

std::vector<int>& visible() {
  static std::vector<int>& devices = *new std::vector<int>;
  return devices;
}

std::string uuid_text(int device) {
  uint8_t bytes[16];
  Node::get().uuid(device, bytes);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char hex[3];
    snprintf(hex, sizeof hex, "%02x", bytes[i]);
    text += hex;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

// One entry of CUDA_VISIBLE_DEVICES: an ordinal, or the beginning of a UUID. -1: no such device.
int parse_entry(const std::string& entry) {
  const int count = Node::get().device_count();
  if (entry.rfind("GPU-", 0) == 0) {
    int match = -1;
    for (int device = 0; device < count; ++device) {
      if (strncasecmp(uuid_text(device).c_str(), entry.c_str(), entry.size()) != 0) continue;
      if (match >= 0) return -1;
      match = device;
    }
    return match;
  }
  char* end = nullptr;
  const long ordinal = strtol(entry.c_str(), &end, 10);
  if (end == entry.c_str() || *end != '\0' || ordinal < 0 || ordinal >= count) return -1;
  return static_cast<int>(ordinal);
}

// As the driver reads it: the list ends at the first entry that names no device; a repeated one hides them
// all.
void choose_visible() {
  const char* list = getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int device = 0; device < Node::get().device_count(); ++device) visible().push_back(device);
    return;
  }
  const std::string text = list;
  for (size_t start = 0; start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    std::string entry = text.substr(start, comma - start);
    entry.erase(0, entry.find_first_not_of(' '));
    const int device = parse_entry(entry);
    if (device < 0) return;
    for (const int other : visible()) {
      if (other == device) {
        visible().clear();
        return;
      }
    }
    visible().push_back(device);
    start = comma + 1;
  }
}

void initialize() {
  choose_visible();
  // The driver does not work in a child of a process that has initialised it, and says so.
  pthread_atfork(nullptr, nullptr, [] { state = State::kForked; });
}

}  // namespace

CUresult ready() {
  return state.load(std::memory_order_acquire) == State::kReady ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

int visible_devices() { return static_cast<int>(visible().size()); }
bool valid_device(CUdevice device) { return device >= 0 && device < visible_devices(); }
int node_device(CUdevice device) { return visible()[device]; }
const GpuModel& device_model(CUdevice device) { return Node::get().model(node_device(device)); }

CUresult device_fault(CUdevice device) {
  Node& node = Node::get();
  const int index = node_device(device);
  if (!node.may_be_faulty(index)) return CUDA_SUCCESS;
  if (node.faults(index).lost) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  switch (node.own_xid(index)) {
    case 0:
      return CUDA_SUCCESS;
    case 31:  // a page fault of the GPU's
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case 48:  // memory errors past correction
    case 94:
    case 95:
      return CUDA_ERROR_ECC_UNCORRECTABLE;
    default:
      return CUDA_ERROR_LAUNCH_FAILED;
  }
}

}  // namespace sim

SIM_API(cuInit)(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (sim::state == sim::State::kForked) return CUDA_ERROR_NOT_INITIALIZED;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, sim::initialize);
  if (sim::visible().empty()) return CUDA_ERROR_NO_DEVICE;
  sim::state.store(sim::State::kReady, std::memory_order_release);
  return CUDA_SUCCESS;
}

SIM_API(cuDriverGetVersion)(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = static_cast<int>(sim::Node::get().settings().driver_version);
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGet)(CUdevice* device, int ordinal) {
  if (CUresult error = sim::check_device(ordinal)) return error;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetCount)(int* count) {
  if (CUresult error = sim::ready()) return error;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = sim::visible_devices();
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetName)(char* name, int length, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, static_cast<size_t>(length), "%s", sim::device_model(device).name);
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceTotalMem_v2)(size_t* bytes, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = sim::device_model(device).memory_bytes;
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceComputeCapability)(int* major, int* minor, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *major = sim::device_model(device).cc_major;
  *minor = sim::device_model(device).cc_minor;
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetProperties)(CUdevprop* properties, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = {1024,
                 {1024, 1024, 64},
                 {2147483647, 65535, 65535},
                 48 << 10,
                 64 << 10,
                 32,
                 2147483647,
                 65536,
                 sim::device_model(device).clock_khz,
                 512};
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetUuid)(CUuuid* uuid, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  sim::Node::get().uuid(sim::node_device(device), reinterpret_cast<uint8_t*>(uuid->bytes));
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetUuid_v2)(CUuuid* uuid, CUdevice device) { return sim_cuDeviceGetUuid(uuid, device); }

SIM_API(cuDeviceGetLuid)(char*, unsigned*, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  return CUDA_ERROR_NOT_SUPPORTED;  // Windows only
}

SIM_API(cuDeviceGetPCIBusId)(char* text, int length, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (text == nullptr || length < 13) return CUDA_ERROR_INVALID_VALUE;
  uint32_t domain, bus, slot;
  sim::Node::get().pci(sim::node_device(device), &domain, &bus, &slot);
  snprintf(text, static_cast<size_t>(length), "%04x:%02x:%02x.0", domain, bus, slot);
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetByPCIBusId)(CUdevice* result, const char* text) {
  if (CUresult error = sim::ready()) return error;
  if (result == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus = 0, slot = 0;
  if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (sscanf(text, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (CUdevice device = 0; device < sim::visible_devices(); ++device) {
    uint32_t its_domain, its_bus, its_slot;
    sim::Node::get().pci(sim::node_device(device), &its_domain, &its_bus, &its_slot);
    if (its_domain == domain && its_bus == bus && its_slot == slot) {
      *result = device;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

SIM_API(cuDeviceCanAccessPeer)(int* can_access, CUdevice device, CUdevice peer) {
  if (CUresult error = sim::check_device(device)) return error;
  if (!sim::valid_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  if (can_access == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *can_access = device != peer;
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetP2PAttribute)
(int* value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice destination) {
  if (CUresult error = sim::check_device(source)) return error;
  if (!sim::valid_device(destination) || source == destination) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

SIM_API(cuDeviceGetTexture1DLinearMaxWidth)
(size_t* elements, CUarray_format, unsigned channels, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (elements == nullptr || channels == 0) return CUDA_ERROR_INVALID_VALUE;
  *elements = 1ull << 28;
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetExecAffinitySupport)(int* supported, CUexecAffinityType, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (supported == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *supported = 0;
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetHostAtomicCapabilities)
(unsigned* capabilities, const CUatomicOperation*, unsigned count, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (capabilities == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) capabilities[i] = 0;
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetP2PAtomicCapabilities)
(unsigned* capabilities, const CUatomicOperation*, unsigned count, CUdevice source, CUdevice destination) {
  if (CUresult error = sim::check_device(source)) return error;
  if (!sim::valid_device(destination)) return CUDA_ERROR_INVALID_DEVICE;
  if (capabilities == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) capabilities[i] = 0;
  return CUDA_SUCCESS;
}

SIM_API(cuFlushGPUDirectRDMAWrites)(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope) {
  return sim::ready();
}

SIM_API(cuProfilerStart)(void) { return sim::ready(); }
SIM_API(cuProfilerStop)(void) { return sim::ready(); }
