// SPDX-License-Identifier: Apache-2.0
//
// Which devices there are, and what each of them is: everything that does not change while it is used.
#include <sched.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>

#include "sim/nvml/answers.h"

namespace sim {
namespace {

// Handles are addresses, as opaque as the real ones.
char g_handles[kMaxDevices];

const GpuModel& model(int device) { return Node::get().model(device); }

constexpr int kTextBytes = 64;

void write_uuid(int device, char out[kTextBytes]) {
  uint8_t b[16];
  Node::get().uuid(device, b);
  snprintf(out, kTextBytes, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
           b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

void write_serial(int device, char out[kTextBytes]) { snprintf(out, kTextBytes, "16500000%05d", device); }

template <typename Matches>
nvmlReturn_t find_handle(Matches matches, nvmlDevice_t* handle) {
  if (!nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!handle) return NVML_ERROR_INVALID_ARGUMENT;
  for (int device = 0; device < Node::get().device_count(); ++device) {
    if (!matches(device)) continue;
    *handle = handle_of(device);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

unsigned int pci_device_id(int device) {
  constexpr struct {
    const char* key;
    unsigned int id;
  } kIds[] = {{"a100", 0x20b2}, {"h100", 0x2330}, {"h200", 0x2335},
              {"l40s", 0x26b9}, {"b200", 0x2901}, {"sm188", 0x2bb5}};
  for (const auto& row : kIds) {
    if (strcmp(row.key, model(device).key) == 0) return row.id << 16 | 0x10de;
  }
  return 0x10de;
}

int clock_mhz(int device, nvmlClockType_t type) {
  return (type == NVML_CLOCK_MEM ? model(device).memory_clock_khz : model(device).clock_khz) / 1000;
}

bool is_clock(nvmlClockType_t type) { return type >= NVML_CLOCK_GRAPHICS && type < NVML_CLOCK_COUNT; }

nvmlReturn_t answer_device_text(nvmlDevice_t handle, void (*write)(int, char*), char* out,
                                unsigned int length) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  char text[kTextBytes];
  write(device, text);
  return answer_text(text, out, length);
}

}  // namespace

nvmlDevice_t handle_of(int device) { return reinterpret_cast<nvmlDevice_t>(&g_handles[device]); }

nvmlReturn_t find_device(nvmlDevice_t handle, int* device) {
  if (!nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  const char* at = reinterpret_cast<const char*>(handle);
  if (at < g_handles || at >= g_handles + Node::get().device_count()) return NVML_ERROR_INVALID_ARGUMENT;
  *device = static_cast<int>(at - g_handles);
  const Faults faults = Node::get().faults(*device);
  if (faults.nvml_delay_us) usleep(faults.nvml_delay_us);
  return faults.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

}  // namespace sim

using sim::answer;
using sim::find_device;
using sim::Node;

// --- Handles.

nvmlReturn_t sim_nvmlDeviceGetCount_v2(unsigned int* count) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = Node::get().device_count();
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetCount(unsigned int* count) { return sim_nvmlDeviceGetCount_v2(count); }

nvmlReturn_t sim_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* handle) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!handle || index >= static_cast<unsigned int>(Node::get().device_count()))
    return NVML_ERROR_INVALID_ARGUMENT;
  *handle = sim::handle_of(index);
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* handle) {
  return sim_nvmlDeviceGetHandleByIndex_v2(index, handle);
}

nvmlReturn_t sim_nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* handle) {
  if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
  const auto has_uuid = [uuid](int device) {
    char own[sim::kTextBytes];
    sim::write_uuid(device, own);
    return strcasecmp(uuid, own) == 0;
  };
  return sim::find_handle(has_uuid, handle);
}

nvmlReturn_t sim_nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t* uuid, nvmlDevice_t* handle) {
  if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
  if (uuid->version != nvmlUUID_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (uuid->type == NVML_UUID_TYPE_ASCII) return sim_nvmlDeviceGetHandleByUUID(uuid->value.str, handle);
  if (uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
  const auto has_uuid = [uuid](int device) {
    uint8_t own[16];
    Node::get().uuid(device, own);
    return memcmp(uuid->value.bytes, own, sizeof(own)) == 0;
  };
  return sim::find_handle(has_uuid, handle);
}

nvmlReturn_t sim_nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* handle) {
  unsigned int domain, bus, dev;
  if (!bus_id || sscanf(bus_id, "%x:%x:%x", &domain, &bus, &dev) != 3) return NVML_ERROR_INVALID_ARGUMENT;
  const auto is_there = [=](int device) {
    uint32_t own_domain, own_bus, own_dev;
    Node::get().pci(device, &own_domain, &own_bus, &own_dev);
    return domain == own_domain && bus == own_bus && dev == own_dev;
  };
  return sim::find_handle(is_there, handle);
}

nvmlReturn_t sim_nvmlDeviceGetHandleByPciBusId(const char* bus_id, nvmlDevice_t* handle) {
  return sim_nvmlDeviceGetHandleByPciBusId_v2(bus_id, handle);
}

nvmlReturn_t sim_nvmlDeviceGetHandleBySerial(const char* serial, nvmlDevice_t* handle) {
  if (!serial) return NVML_ERROR_INVALID_ARGUMENT;
  const auto has_serial = [serial](int device) {
    char own[sim::kTextBytes];
    sim::write_serial(device, own);
    return strcmp(serial, own) == 0;
  };
  return sim::find_handle(has_serial, handle);
}

// --- Identity.

nvmlReturn_t sim_nvmlDeviceGetName(nvmlDevice_t handle, char* name, unsigned int length) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  return sim::answer_text(sim::model(device).name, name, length);
}

nvmlReturn_t sim_nvmlDeviceGetUUID(nvmlDevice_t handle, char* uuid, unsigned int length) {
  return sim::answer_device_text(handle, sim::write_uuid, uuid, length);
}

nvmlReturn_t sim_nvmlDeviceGetSerial(nvmlDevice_t handle, char* serial, unsigned int length) {
  return sim::answer_device_text(handle, sim::write_serial, serial, length);
}

nvmlReturn_t sim_nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int* index) {
  return answer(handle, index, [](int device) { return device; });
}

nvmlReturn_t sim_nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned int* minor) {
  return answer(handle, minor, [](int device) { return device; });
}

nvmlReturn_t sim_nvmlDeviceGetModuleId(nvmlDevice_t handle, unsigned int* module) {
  return answer(handle, module, [](int device) { return device; });
}

nvmlReturn_t sim_nvmlDeviceGetBoardId(nvmlDevice_t handle, unsigned int* board) {
  return answer(handle, board, [](int device) {
    uint32_t domain, bus, dev;
    Node::get().pci(device, &domain, &bus, &dev);
    return bus << 8;
  });
}

nvmlReturn_t sim_nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t* pci) {
  return answer(handle, pci, [](int device) {
    nvmlPciInfo_t info = {};
    uint32_t domain, bus, dev;
    Node::get().pci(device, &domain, &bus, &dev);
    info.domain = domain;
    info.bus = bus;
    info.device = dev;
    info.pciDeviceId = info.pciSubSystemId = sim::pci_device_id(device);
    snprintf(info.busIdLegacy, sizeof(info.busIdLegacy), "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff,
             dev & 0xff);
    snprintf(info.busId, sizeof(info.busId), "%08X:%02X:%02X.0", domain, bus & 0xff, dev & 0xff);
    return info;
  });
}

nvmlReturn_t sim_nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_t* pci) {
  nvmlPciInfo_t info;
  if (const nvmlReturn_t error = sim_nvmlDeviceGetPciInfo_v3(handle, pci ? &info : nullptr)) return error;
  // The older structure ends before the longer bus id.
  memcpy(pci, &info, offsetof(nvmlPciInfo_t, busId));
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetPciInfo(nvmlDevice_t handle, nvmlPciInfo_t* pci) {
  nvmlPciInfo_t info;
  if (const nvmlReturn_t error = sim_nvmlDeviceGetPciInfo_v3(handle, pci ? &info : nullptr)) return error;
  // Older still, without the subsystem's id.
  memcpy(pci, &info, offsetof(nvmlPciInfo_t, pciSubSystemId));
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetPciInfoExt(nvmlDevice_t handle, nvmlPciInfoExt_t* pci) {
  nvmlPciInfo_t info;
  if (const nvmlReturn_t error = sim_nvmlDeviceGetPciInfo_v3(handle, pci ? &info : nullptr)) return error;
  if (pci->version != nvmlPciInfoExt_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  pci->domain = info.domain;
  pci->bus = info.bus;
  pci->device = info.device;
  pci->pciDeviceId = info.pciDeviceId;
  pci->pciSubSystemId = info.pciSubSystemId;
  pci->baseClass = 0x03;  // display controller,
  pci->subClass = 0x02;   // 3D
  memcpy(pci->busId, info.busId, sizeof(pci->busId));
  return NVML_SUCCESS;
}

// --- Kind.

nvmlReturn_t sim_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int* major, int* minor) {
  if (!minor) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t error = answer(handle, major, [](int device) { return sim::model(device).cc_major; });
  return error ? error : answer(handle, minor, [](int device) { return sim::model(device).cc_minor; });
}

nvmlReturn_t sim_nvmlDeviceGetArchitecture(nvmlDevice_t handle, nvmlDeviceArchitecture_t* arch) {
  return answer(handle, arch, [](int device) {
    const sim::GpuModel& model = sim::model(device);
    if (model.cc_major == 8) return model.cc_minor == 9 ? NVML_DEVICE_ARCH_ADA : NVML_DEVICE_ARCH_AMPERE;
    return model.cc_major == 9 ? NVML_DEVICE_ARCH_HOPPER : NVML_DEVICE_ARCH_BLACKWELL;
  });
}

nvmlReturn_t sim_nvmlDeviceGetBrand(nvmlDevice_t handle, nvmlBrandType_t* brand) {
  return answer(handle, brand, NVML_BRAND_NVIDIA);
}

nvmlReturn_t sim_nvmlDeviceGetNumGpuCores(nvmlDevice_t handle, unsigned int* cores) {
  return answer(handle, cores, [](int device) {
    const sim::GpuModel& model = sim::model(device);
    return model.sm_count * (model.cc_major == 8 && model.cc_minor == 0 ? 64 : 128);
  });
}

nvmlReturn_t sim_nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t* attributes) {
  return answer(handle, attributes, [](int device) {
    nvmlDeviceAttributes_t all = {};
    all.multiprocessorCount = sim::model(device).sm_count;
    all.memorySizeMB = sim::model(device).memory_bytes >> 20;
    return all;
  });
}

nvmlReturn_t sim_nvmlDeviceGetAttributes(nvmlDevice_t handle, nvmlDeviceAttributes_t* attributes) {
  return sim_nvmlDeviceGetAttributes_v2(handle, attributes);
}

nvmlReturn_t sim_nvmlDeviceGetMemoryBusWidth(nvmlDevice_t handle, unsigned int* bits) {
  return answer(handle, bits, [](int device) { return sim::model(device).bus_width_bits; });
}

nvmlReturn_t sim_nvmlDeviceGetBusType(nvmlDevice_t handle, nvmlBusType_t* type) {
  return answer(handle, type, NVML_BUS_TYPE_PCIE);
}

nvmlReturn_t sim_nvmlDeviceGetMultiGpuBoard(nvmlDevice_t handle, unsigned int* multi) {
  return answer(handle, multi, 0);
}

nvmlReturn_t sim_nvmlDeviceGetVbiosVersion(nvmlDevice_t handle, char* version, unsigned int length) {
  return sim::answer_device_text(
      handle, [](int, char* out) { snprintf(out, sim::kTextBytes, "96.00.00.00.00"); }, version, length);
}

// --- Modes. A simulated device is in the modes that a data centre's are, and in no other.

nvmlReturn_t sim_nvmlDeviceGetComputeMode(nvmlDevice_t handle, nvmlComputeMode_t* mode) {
  return answer(handle, mode, NVML_COMPUTEMODE_DEFAULT);
}

nvmlReturn_t sim_nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, nvmlEnableState_t* mode) {
  return answer(handle, mode, NVML_FEATURE_ENABLED);
}

nvmlReturn_t sim_nvmlDeviceGetDisplayMode(nvmlDevice_t handle, nvmlEnableState_t* mode) {
  return answer(handle, mode, NVML_FEATURE_DISABLED);
}

nvmlReturn_t sim_nvmlDeviceGetDisplayActive(nvmlDevice_t handle, nvmlEnableState_t* active) {
  return answer(handle, active, NVML_FEATURE_DISABLED);
}

nvmlReturn_t sim_nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int* current, unsigned int* pending) {
  if (!pending) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t error = answer(handle, current, NVML_DEVICE_MIG_DISABLE);
  return error ? error : answer(handle, pending, NVML_DEVICE_MIG_DISABLE);
}

nvmlReturn_t sim_nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int* count) {
  return answer(handle, count, 0);
}

nvmlReturn_t sim_nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int* is_mig) {
  return answer(handle, is_mig, 0);
}

nvmlReturn_t sim_nvmlDeviceGetEccMode(nvmlDevice_t handle, nvmlEnableState_t* current,
                                      nvmlEnableState_t* pending) {
  if (!pending) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t error = answer(handle, current, NVML_FEATURE_ENABLED);
  return error ? error : answer(handle, pending, NVML_FEATURE_ENABLED);
}

nvmlReturn_t sim_nvmlDeviceGetDefaultEccMode(nvmlDevice_t handle, nvmlEnableState_t* mode) {
  return answer(handle, mode, NVML_FEATURE_ENABLED);
}

nvmlReturn_t sim_nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, nvmlMemoryErrorType_t, nvmlEccCounterType_t,
                                             unsigned long long* count) {
  return answer(handle, count, 0);
}

nvmlReturn_t sim_nvmlDeviceGetVirtualizationMode(nvmlDevice_t handle, nvmlGpuVirtualizationMode_t* mode) {
  return answer(handle, mode, NVML_GPU_VIRTUALIZATION_MODE_NONE);
}

nvmlReturn_t sim_nvmlDeviceGetGspFirmwareMode(nvmlDevice_t handle, unsigned int* enabled,
                                              unsigned int* by_default) {
  if (!by_default) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t error = answer(handle, enabled, 1);
  return error ? error : answer(handle, by_default, 1);
}

// --- Clocks and links.

nvmlReturn_t sim_nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, nvmlClockType_t type, unsigned int* mhz) {
  if (!sim::is_clock(type)) return NVML_ERROR_INVALID_ARGUMENT;
  return answer(handle, mhz, [type](int device) { return sim::clock_mhz(device, type); });
}

nvmlReturn_t sim_nvmlDeviceGetClockInfo(nvmlDevice_t handle, nvmlClockType_t type, unsigned int* mhz) {
  return sim_nvmlDeviceGetMaxClockInfo(handle, type, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetApplicationsClock(nvmlDevice_t handle, nvmlClockType_t type,
                                                unsigned int* mhz) {
  return sim_nvmlDeviceGetMaxClockInfo(handle, type, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t handle, nvmlClockType_t type,
                                                       unsigned int* mhz) {
  return sim_nvmlDeviceGetMaxClockInfo(handle, type, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetClock(nvmlDevice_t handle, nvmlClockType_t type, nvmlClockId_t,
                                    unsigned int* mhz) {
  return sim_nvmlDeviceGetMaxClockInfo(handle, type, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t handle, unsigned long long* reasons) {
  return answer(handle, reasons, nvmlClocksThrottleReasonNone);
}

nvmlReturn_t sim_nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t handle, unsigned long long* reasons) {
  return answer(handle, reasons, nvmlClocksEventReasonNone);
}

nvmlReturn_t sim_nvmlDeviceGetPerformanceState(nvmlDevice_t handle, nvmlPstates_t* state) {
  return answer(handle, state, NVML_PSTATE_0);
}

nvmlReturn_t sim_nvmlDeviceGetPowerState(nvmlDevice_t handle, nvmlPstates_t* state) {
  return answer(handle, state, NVML_PSTATE_0);
}

nvmlReturn_t sim_nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t handle, unsigned int* generation) {
  return answer(handle, generation, [](int device) { return sim::model(device).cc_major >= 9 ? 5 : 4; });
}

nvmlReturn_t sim_nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t handle, unsigned int* generation) {
  return sim_nvmlDeviceGetMaxPcieLinkGeneration(handle, generation);
}

nvmlReturn_t sim_nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t handle, unsigned int* generation) {
  return sim_nvmlDeviceGetMaxPcieLinkGeneration(handle, generation);
}

nvmlReturn_t sim_nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t handle, unsigned int* width) {
  return answer(handle, width, 16);
}

nvmlReturn_t sim_nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t handle, unsigned int* width) {
  return answer(handle, width, 16);
}

nvmlReturn_t sim_nvmlDeviceGetNumFans(nvmlDevice_t handle, unsigned int* fans) {
  return answer(handle, fans, 0);
}

// --- Where it is. The devices hang on one host bridge, reach each other over PCIe and have no fabric.

nvmlReturn_t sim_nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second,
                                                     nvmlGpuTopologyLevel_t* level) {
  int device;
  if (const nvmlReturn_t error = find_device(second, &device)) return error;
  return answer(first, level, first == second ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_HOSTBRIDGE);
}

nvmlReturn_t sim_nvmlDeviceOnSameBoard(nvmlDevice_t first, nvmlDevice_t second, int* same) {
  int device;
  if (const nvmlReturn_t error = find_device(second, &device)) return error;
  return answer(first, same, first == second);
}

nvmlReturn_t sim_nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second,
                                        nvmlGpuP2PCapsIndex_t capability, nvmlGpuP2PStatus_t* status) {
  int device;
  if (const nvmlReturn_t error = find_device(second, &device)) return error;
  const bool can = capability == NVML_P2P_CAPS_INDEX_READ || capability == NVML_P2P_CAPS_INDEX_WRITE ||
                   capability == NVML_P2P_CAPS_INDEX_PCI;
  return answer(first, status, can ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED);
}

nvmlReturn_t sim_nvmlDeviceGetGpuFabricInfo(nvmlDevice_t handle, nvmlGpuFabricInfo_t* info) {
  return answer(handle, info, nvmlGpuFabricInfo_t{});  // state: not supported
}

nvmlReturn_t sim_nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle, nvmlGpuFabricInfoV_t* info) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  if (!info) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned int version = info->version;
  if (version != nvmlGpuFabricInfo_v2 && version != nvmlGpuFabricInfo_v3)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  // The caller's structure is as long as its version says; all zeroes is "not supported".
  memset(info, 0, version & 0xffffff);
  info->version = version;
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned int words, unsigned long* set) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  if (!set || words == 0) return NVML_ERROR_INVALID_ARGUMENT;
  memset(set, 0, words * sizeof(*set));
  const unsigned int bits = 8 * sizeof(*set);
  const unsigned int cpus = std::min<unsigned int>(sysconf(_SC_NPROCESSORS_ONLN), words * bits);
  for (unsigned int cpu = 0; cpu < cpus; ++cpu) set[cpu / bits] |= 1ul << cpu % bits;
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t* values) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  if (!values || count < 0) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < count; ++i) values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  return NVML_SUCCESS;
}
