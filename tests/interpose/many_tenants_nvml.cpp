// SPDX-License-Identifier: Apache-2.0
//
// A libnvidia-ml.so.1 of one GPU that everybody uses: each pid of the environment's TENANTS ("12 34") keeps
// it busy for a fifth of the time, has 1 GiB of it, encodes, captures and is accounted for.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <type_traits>
#include <vector>

namespace {

constexpr unsigned long long kGiB = 1ull << 30;
constexpr unsigned kBusyPercent = 20;
constexpr unsigned kMemoryBusyPercent = 10;
constexpr char kUuid[] = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";

std::vector<unsigned> tenants() {
  const char* const text = getenv("TENANTS");
  std::istringstream words(text != nullptr ? text : "");
  std::vector<unsigned> pids;
  for (unsigned pid; words >> pid;) pids.push_back(pid);
  return pids;
}

bool is_tenant(unsigned pid) {
  for (const unsigned tenant : tenants()) {
    if (tenant == pid) return true;
  }
  return false;
}

template <typename Info, typename Fill>
nvmlReturn_t hand_out(unsigned* count, Info* infos, Fill fill) {
  const std::vector<unsigned> pids = tenants();
  const unsigned room = *count;
  *count = static_cast<unsigned>(pids.size());
  if (infos == nullptr || room < pids.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (size_t i = 0; i < pids.size(); i++) {
    infos[i] = {};
    fill(infos[i], pids[i]);
  }
  return NVML_SUCCESS;
}

template <typename Info>
nvmlReturn_t processes(unsigned* count, Info* infos) {
  return hand_out(count, infos, [](Info& info, unsigned pid) {
    info.pid = pid;
    info.usedGpuMemory = kGiB;
  });
}

template <typename Info>
nvmlReturn_t sessions(unsigned* count, Info* infos) {
  const nvmlReturn_t result = hand_out(count, infos, [](Info& info, unsigned pid) {
    info.pid = pid;
    info.averageLatency = pid;
  });
  return infos == nullptr ? NVML_SUCCESS : result;
}

template <typename Entry>
void busy(Entry& entry, unsigned pid) {
  entry.pid = pid;
  entry.smUtil = kBusyPercent;
  entry.memUtil = kMemoryBusyPercent;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t* device) {
  *device = reinterpret_cast<nvmlDevice_t>(&is_tenant);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char* uuid, unsigned length) {
  strncpy(uuid, kUuid, length);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned* count,
                                                     nvmlProcessInfo_t* infos) {
  return processes(count, infos);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t, unsigned* count,
                                                        nvmlProcessInfo_t* infos) {
  return processes(count, infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t, unsigned* count,
                                                      nvmlProcessInfo_t* infos) {
  return processes(count, infos);
}
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t, nvmlProcessDetailList_t* list) {
  if (list->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return processes(&list->numProcArrayEntries, list->procArray);
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t, unsigned* count, nvmlEncoderSessionInfo_t* infos) {
  return sessions(count, infos);
}
nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t, unsigned* count, nvmlFBCSessionInfo_t* infos) {
  return sessions(count, infos);
}
nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t, unsigned* count, unsigned* fps, unsigned* latency) {
  *count = static_cast<unsigned>(tenants().size());
  *fps = *latency = 1;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t, nvmlFBCStats_t* stats) {
  *stats = {static_cast<unsigned>(tenants().size()), 1, 1};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t, unsigned* count, unsigned* pids) {
  return hand_out(count, pids, [](unsigned& listed, unsigned pid) { listed = pid; });
}
nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t, unsigned pid, nvmlAccountingStats_t* stats) {
  if (!is_tenant(pid)) return NVML_ERROR_NOT_FOUND;
  *stats = {};
  stats->gpuUtilization = kBusyPercent;
  stats->memoryUtilization = static_cast<unsigned>(NVML_VALUE_NOT_AVAILABLE);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t, nvmlAccountingStats_v2_t* stats) {
  if (!is_tenant(stats->pid)) return NVML_ERROR_NOT_FOUND;
  stats->gpuUtilization = kBusyPercent;
  stats->memoryUtilization = kMemoryBusyPercent;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t, nvmlUtilization_t* rates) {
  const auto busy_tenants = static_cast<unsigned>(tenants().size());
  *rates = {busy_tenants * kBusyPercent, busy_tenants * kMemoryBusyPercent};
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t* info) {
  nvmlUtilization_t rates;
  nvmlDeviceGetUtilizationRates(device, &rates);
  *info = {};
  info->utilization[NVML_GPU_UTILIZATION_DOMAIN_GPU].percentage = rates.gpu;
  info->utilization[NVML_GPU_UTILIZATION_DOMAIN_FB].percentage = rates.memory;
  info->utilization[NVML_GPU_UTILIZATION_DOMAIN_BUS].percentage = 7;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t, nvmlSamplingType_t, unsigned long long, nvmlValueType_t*,
                                  unsigned* count, nvmlSample_t*) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 120;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t, nvmlProcessUtilizationSample_t* samples,
                                             unsigned* count, unsigned long long) {
  if (tenants().empty()) return NVML_ERROR_NOT_FOUND;
  return hand_out(count, samples, busy<nvmlProcessUtilizationSample_t>);
}
nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t, nvmlProcessesUtilizationInfo_t* info) {
  if (tenants().empty()) return NVML_ERROR_NOT_FOUND;
  return hand_out(&info->processSamplesCount, info->procUtilArray, busy<nvmlProcessUtilizationInfo_v1_t>);
}

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t, nvmlConfComputeMemSizeInfo_t* sizes) {
  *sizes = {80ull << 20, 0};
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t, nvmlMemory_t* memory) {
  *memory = {80 * kGiB, 10 * kGiB, 70 * kGiB};
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t, nvmlBAR1Memory_t* memory) {
  *memory = {128 * kGiB, 58 * kGiB, 70 * kGiB};
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t, nvmlDeviceAttributes_t* attributes) {
  *attributes = {};
  attributes->multiprocessorCount = 132;
  attributes->memorySizeMB = 80ull << 10;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t, nvmlGpmSupport_t* support) {
  support->isSupportedDevice = 1;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t, nvmlGpmSample_t) { return NVML_SUCCESS; }

}  // extern "C"
