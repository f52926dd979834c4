// SPDX-License-Identifier: Apache-2.0
//
// Who uses a device, and how much: read from the node as it is at that moment.
#include <time.h>

#include <algorithm>
#include <vector>

#include "sim/nvml/answers.h"

namespace sim {
namespace {

// NVML's own sampling period is between 1/6 s and 1 s, depending on the product.
constexpr uint64_t kUtilizationWindowNs = 1'000'000'000 / 6;
constexpr uint64_t kLongestWindowNs = 1'000'000'000;
constexpr unsigned int kNoInstance = 0xffffffff;  // of MIG

uint64_t wall_clock_us() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000ull + now.tv_nsec / 1000;
}

bool has_no_memory_info(nvmlDevice_t handle) {
  int device;
  return find_device(handle, &device) == NVML_SUCCESS && Node::get().faults(device).no_memory_info;
}

std::vector<ProcessUse> processes(int device) {
  std::vector<ProcessUse> list(16);
  for (;;) {
    const size_t count = Node::get().processes(device, list.data(), list.size());
    const bool fits = count <= list.size();
    list.resize(count);
    if (fits) return list;
  }
}

// NVML's way of handing out a list: *count says what there is room for, and then how many there are.
template <typename Info, typename Fill>
nvmlReturn_t answer_list(const std::vector<ProcessUse>& list, unsigned int* count, Info* infos, Fill fill) {
  if (!count || (*count > 0 && !infos)) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned int room = *count;
  *count = list.size();
  if (list.size() > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (size_t i = 0; i < list.size(); ++i) infos[i] = fill(list[i]);
  return NVML_SUCCESS;
}

template <typename Info>
nvmlReturn_t answer_processes(nvmlDevice_t handle, unsigned int* count, Info* infos) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  const bool is_known = !Node::get().faults(device).no_memory_info;
  return answer_list(processes(device), count, infos, [is_known](const ProcessUse& use) {
    Info info = {};
    info.pid = use.pid;
    info.usedGpuMemory =
        is_known ? use.used_bytes : static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE);
    // The oldest of these structures ends here.
    if constexpr (!std::is_same_v<Info, nvmlProcessInfo_v1_t>) {
      info.gpuInstanceId = info.computeInstanceId = kNoInstance;
    }
    return info;
  });
}

// Graphics and MPS: there are none.
template <typename Info>
nvmlReturn_t answer_no_processes(nvmlDevice_t handle, unsigned int* count, Info* infos) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  return answer_list({}, count, infos, [](const ProcessUse&) { return Info{}; });
}

// From the caller's last sample until now, as far as the node remembers.
uint64_t window_since(uint64_t last_seen_us, uint64_t now_us) {
  if (last_seen_us == 0 || last_seen_us >= now_us) return kUtilizationWindowNs;
  return std::clamp((now_us - last_seen_us) * 1000, kUtilizationWindowNs, kLongestWindowNs);
}

}  // namespace
}  // namespace sim

using sim::answer;
using sim::find_device;
using sim::Node;

// --- Memory.

nvmlReturn_t sim_nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t* memory) {
  if (sim::has_no_memory_info(handle)) return NVML_ERROR_NOT_SUPPORTED;
  return answer(handle, memory, [](int device) {
    const sim::MemoryInfo info = Node::get().memory(device);
    nvmlMemory_t all = {};
    all.total = info.total_bytes + info.reserved_bytes;
    all.used = info.used_bytes + info.reserved_bytes;
    all.free = all.total - all.used;
    return all;
  });
}

nvmlReturn_t sim_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t* memory) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  if (sim::has_no_memory_info(handle)) return NVML_ERROR_NOT_SUPPORTED;
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const sim::MemoryInfo info = Node::get().memory(device);
  memory->total = info.total_bytes + info.reserved_bytes;
  memory->reserved = info.reserved_bytes;
  memory->used = info.used_bytes;
  memory->free = info.total_bytes - info.used_bytes;
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t* memory) {
  return answer(handle, memory, [](int device) {
    nvmlBAR1Memory_t all = {};
    all.bar1Total = 1;  // the power of two that holds the whole memory
    while (all.bar1Total < Node::get().model(device).memory_bytes) all.bar1Total <<= 1;
    all.bar1Used = 2ull << 20;
    all.bar1Free = all.bar1Total - all.bar1Used;
    return all;
  });
}

// --- Processes.

nvmlReturn_t sim_nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned int* count,
                                                      nvmlProcessInfo_v1_t* infos) {
  return sim::answer_processes(handle, count, infos);
}

nvmlReturn_t sim_nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned int* count,
                                                         nvmlProcessInfo_v2_t* infos) {
  return sim::answer_processes(handle, count, infos);
}

nvmlReturn_t sim_nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int* count,
                                                         nvmlProcessInfo_t* infos) {
  return sim::answer_processes(handle, count, infos);
}

nvmlReturn_t sim_nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t handle, unsigned int* count,
                                                       nvmlProcessInfo_v1_t* infos) {
  return sim::answer_no_processes(handle, count, infos);
}

nvmlReturn_t sim_nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t handle, unsigned int* count,
                                                          nvmlProcessInfo_v2_t* infos) {
  return sim::answer_no_processes(handle, count, infos);
}

nvmlReturn_t sim_nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned int* count,
                                                          nvmlProcessInfo_t* infos) {
  return sim::answer_no_processes(handle, count, infos);
}

nvmlReturn_t sim_nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t handle, unsigned int* count,
                                                         nvmlProcessInfo_v1_t* infos) {
  return sim::answer_no_processes(handle, count, infos);
}

nvmlReturn_t sim_nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned int* count,
                                                            nvmlProcessInfo_v2_t* infos) {
  return sim::answer_no_processes(handle, count, infos);
}

nvmlReturn_t sim_nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int* count,
                                                            nvmlProcessInfo_t* infos) {
  return sim::answer_no_processes(handle, count, infos);
}

// --- Time.

nvmlReturn_t sim_nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t* rates) {
  return answer(handle, rates, [](int device) {
    nvmlUtilization_t all = {};
    all.gpu = Node::get().utilization_percent(device, sim::kUtilizationWindowNs);
    // Time in which memory was read or written; the simulation has kernels do so half of theirs.
    all.memory = all.gpu / 2;
    return all;
  });
}

nvmlReturn_t sim_nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t* samples,
                                                 unsigned int* count, unsigned long long last_seen_us) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  const std::vector<sim::ProcessUse> list = sim::processes(device);
  if (!samples || *count < list.size()) {
    *count = list.size();
    return list.empty() ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INSUFFICIENT_SIZE;
  }
  *count = list.size();
  if (list.empty()) return NVML_ERROR_NOT_FOUND;
  const uint64_t now_us = sim::wall_clock_us();
  for (size_t i = 0; i < list.size(); ++i) {
    samples[i] = {};
    samples[i].pid = list[i].pid;
    samples[i].timeStamp = now_us;
    samples[i].smUtil =
        Node::get().process_utilization_percent(device, list[i].pid, sim::window_since(last_seen_us, now_us));
    samples[i].memUtil = samples[i].smUtil / 2;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle,
                                                       nvmlProcessesUtilizationInfo_t* info) {
  int device;
  if (const nvmlReturn_t error = find_device(handle, &device)) return error;
  if (!info) return NVML_ERROR_INVALID_ARGUMENT;
  if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const std::vector<sim::ProcessUse> list = sim::processes(device);
  const unsigned int room = info->processSamplesCount;
  info->processSamplesCount = list.size();
  if (list.empty()) return NVML_ERROR_NOT_FOUND;
  if (!info->procUtilArray || room < list.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  const uint64_t now_us = sim::wall_clock_us();
  for (size_t i = 0; i < list.size(); ++i) {
    nvmlProcessUtilizationInfo_v1_t& sample = info->procUtilArray[i];
    sample = {};
    sample.pid = list[i].pid;
    sample.timeStamp = now_us;
    sample.smUtil = Node::get().process_utilization_percent(
        device, list[i].pid, sim::window_since(info->lastSeenTimeStamp, now_us));
    sample.memUtil = sample.smUtil / 2;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetEncoderUtilization(nvmlDevice_t handle, unsigned int* percent,
                                                 unsigned int* period_us) {
  if (!period_us) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t error = answer(handle, percent, 0);
  return error ? error : answer(handle, period_us, sim::kUtilizationWindowNs / 1000);
}

nvmlReturn_t sim_nvmlDeviceGetDecoderUtilization(nvmlDevice_t handle, unsigned int* percent,
                                                 unsigned int* period_us) {
  return sim_nvmlDeviceGetEncoderUtilization(handle, percent, period_us);
}

// --- Power and heat follow the work: idle an eighth of the limit, busy seven eighths.

nvmlReturn_t sim_nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned int* milliwatts) {
  return answer(handle, milliwatts, [](int device) {
    const uint64_t busy_percent = Node::get().utilization_percent(device, sim::kUtilizationWindowNs);
    return Node::get().model(device).power_limit_mw * (100 + 6 * busy_percent) / 800;
  });
}

nvmlReturn_t sim_nvmlDeviceGetPowerManagementMode(nvmlDevice_t handle, nvmlEnableState_t* mode) {
  return answer(handle, mode, NVML_FEATURE_ENABLED);
}

nvmlReturn_t sim_nvmlDeviceGetPowerManagementLimit(nvmlDevice_t handle, unsigned int* milliwatts) {
  return answer(handle, milliwatts, [](int device) { return Node::get().model(device).power_limit_mw; });
}

nvmlReturn_t sim_nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t handle, unsigned int* milliwatts) {
  return sim_nvmlDeviceGetPowerManagementLimit(handle, milliwatts);
}

nvmlReturn_t sim_nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned int* milliwatts) {
  return sim_nvmlDeviceGetPowerManagementLimit(handle, milliwatts);
}

nvmlReturn_t sim_nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t handle, unsigned int* least,
                                                              unsigned int* most) {
  if (!least) return NVML_ERROR_INVALID_ARGUMENT;
  if (const nvmlReturn_t error = sim_nvmlDeviceGetPowerManagementLimit(handle, most)) return error;
  *least = *most / 3;
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetTemperature(nvmlDevice_t handle, nvmlTemperatureSensors_t sensor,
                                          unsigned int* celsius) {
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  return answer(handle, celsius, [](int device) {
    return 32 + Node::get().utilization_percent(device, sim::kUtilizationWindowNs) * 3 / 10;
  });
}

nvmlReturn_t sim_nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_t* temperature) {
  if (!temperature) return NVML_ERROR_INVALID_ARGUMENT;
  if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  unsigned int celsius;
  if (const nvmlReturn_t error = sim_nvmlDeviceGetTemperature(handle, temperature->sensorType, &celsius))
    return error;
  temperature->temperature = static_cast<int>(celsius);
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetTemperatureThreshold(nvmlDevice_t handle, nvmlTemperatureThresholds_t threshold,
                                                   unsigned int* celsius) {
  switch (threshold) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
      return answer(handle, celsius, 92);
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
      return answer(handle, celsius, 89);
    case NVML_TEMPERATURE_THRESHOLD_MEM_MAX:
      return answer(handle, celsius, 95);
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
      return answer(handle, celsius, 87);
    default:
      return NVML_ERROR_NOT_SUPPORTED;
  }
}
