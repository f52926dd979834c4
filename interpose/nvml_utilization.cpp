// SPDX-License-Identifier: Apache-2.0
//
// How busy NVML shows the GPU: in percent of the slice's guaranteed share of its time, at most 100. A slice
// of a quarter of the GPU that gets a quarter, and one that gets more because nobody else wants it, are fully
// used.
//
// What the slice received is the broker's figure, which is there for a process that has only just started
// too. Where the broker has none of late (none runs, or nothing contends for the GPU) it is what the driver
// says of the slice's processes, and what it says of the GPU if it can't tell them apart.
#include <time.h>

#include "interpose/nvml_lists.h"
#include "interpose/syscalls.h"

namespace hook {
namespace {

using Sample = nvmlProcessUtilizationSample_t;

constexpr uint64_t kSecondUs = 1'000'000;
constexpr uint64_t kRatesLastS = 2;

uint64_t realtime_us() {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * kSecondUs + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

// Percent of the GPU's time.
struct Busy {
  unsigned gpu;
  unsigned memory;
};

unsigned of_share(const SeenGpu& gpu, unsigned percent) {
  const uint64_t share_percent = gpu.slice->limits->share.compute_percent.load(std::memory_order_relaxed);
  if (share_percent == 0) return percent;
  return static_cast<unsigned>(
      std::min<uint64_t>(100, (uint64_t{percent} * 100 + share_percent / 2) / share_percent));
}
void of_share(const SeenGpu& gpu, unsigned* percent) {
  if (*percent != static_cast<unsigned>(NVML_VALUE_NOT_AVAILABLE)) *percent = of_share(gpu, *percent);
}

// What the broker says that the slice received in the last second. A slice of several GPUs has one account
// for all of them, which says of one that it was used no more often.
bool received(const SeenGpu& gpu, unsigned* percent) {
  const shm::Share& share = gpu.slice->limits->share;
  const uint64_t at_s = share.rates_at_s.load(std::memory_order_acquire);
  const uint64_t now_s = now_ns() / 1'000'000'000;
  if (at_s == 0 || now_s - std::min(now_s, at_s) > kRatesLastS) return false;
  *percent = (shm::rate(share.received_rates.load(std::memory_order_relaxed), 0) + 50) / 100;
  return true;
}

bool processes_busy(nvmlDevice_t device, const SeenGpu& gpu, Busy* busy) {
  *busy = {};
  const uint64_t since_us = realtime_us() - kSecondUs;
  const nvmlReturn_t result = list_own<Sample>(
      Residents(gpu),
      [=](unsigned* room, Sample* out) {
        return real<fn::nvmlDeviceGetProcessUtilization>(device, out, room, since_us);
      },
      [](Sample&, const Residents::Resident&) {},
      [=](const Sample* own, unsigned count) {
        for (unsigned i = 0; i < count; i++) {
          busy->gpu = std::min(100u, busy->gpu + std::min(100u, own[i].smUtil));
          busy->memory = std::min(100u, busy->memory + std::min(100u, own[i].memUtil));
        }
        return NVML_SUCCESS;
      });
  return result == NVML_SUCCESS || result == NVML_ERROR_NOT_FOUND;  // nobody was busy
}

Busy busy_of_slice(nvmlDevice_t device, const SeenGpu& gpu, const Busy& whole) {
  Busy busy;
  const bool told = processes_busy(device, gpu, &busy);
  if (!told) busy = whole;
  unsigned percent;
  if (!received(gpu, &percent)) return busy;
  busy.gpu = gpu.slice->gpu_count == 1 ? percent : std::min(percent, busy.gpu);
  // Memory is taken to be as busy in the slice's time as in everybody's.
  if (!told) busy.memory = whole.gpu == 0 ? 0 : whole.memory * std::min(busy.gpu, whole.gpu) / whole.gpu;
  return busy;
}

Busy used_of_share(nvmlDevice_t device, const SeenGpu& gpu, const Busy& whole) {
  const Busy busy = busy_of_slice(device, gpu, whole);
  return {of_share(gpu, busy.gpu), of_share(gpu, busy.memory)};
}

template <typename Entry>
void show_use(const SeenGpu& gpu, Entry& entry) {
  entry.smUtil = of_share(gpu, entry.smUtil);
  entry.memUtil = of_share(gpu, entry.memUtil);
}

// `ask(pid)` is the true function.
template <typename Stats, typename Ask>
nvmlReturn_t accounting_of_slice(nvmlDevice_t device, uint32_t pid, Stats* stats, Ask ask) {
  SeenGpu gpu;
  const Sight sight = stats != nullptr ? see_device(device, &gpu) : Sight::kNothing;
  if (sight == Sight::kClosed) return NVML_ERROR_UNKNOWN;
  if (sight == Sight::kNothing) return ask(pid);
  uint32_t host_pid;
  Residents::Resident resident;
  if (!Residents(gpu).find_here(pid, &host_pid, &resident)) return NVML_ERROR_NOT_FOUND;
  nvmlReturn_t result = ask(host_pid);
  if (result == NVML_ERROR_NOT_FOUND && host_pid != pid) result = ask(pid);
  if (result != NVML_SUCCESS) return result;
  of_share(gpu, &stats->gpuUtilization);
  of_share(gpu, &stats->memoryUtilization);
  return result;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) noexcept {
  return show_slice(real<fn::nvmlDeviceGetUtilizationRates>(device, utilization), device,
                    [=](const SeenGpu& gpu) {
                      const Busy used = used_of_share(device, gpu, {utilization->gpu, utilization->memory});
                      utilization->gpu = used.gpu;
                      utilization->memory = used.memory;
                      return NVML_SUCCESS;
                    });
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device,
                                             nvmlGpuDynamicPstatesInfo_t* pDynamicPstatesInfo) noexcept {
  constexpr int kGpu = NVML_GPU_UTILIZATION_DOMAIN_GPU;
  constexpr int kMemory = NVML_GPU_UTILIZATION_DOMAIN_FB;
  return show_slice(
      real<fn::nvmlDeviceGetDynamicPstatesInfo>(device, pDynamicPstatesInfo), device,
      [=](const SeenGpu& gpu) {
        auto& domains = pDynamicPstatesInfo->utilization;
        const Busy used = used_of_share(device, gpu, {domains[kGpu].percentage, domains[kMemory].percentage});
        domains[kGpu].percentage = used.gpu;
        domains[kMemory].percentage = used.memory;
        return NVML_SUCCESS;
      });
}

// The driver's buffer is of the whole GPU. In its place there is one sample, of now.
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long lastSeenTimeStamp, nvmlValueType_t* sampleValType,
                                  unsigned int* sampleCount, nvmlSample_t* samples) noexcept {
  const bool of_gpu = type == NVML_GPU_UTILIZATION_SAMPLES;
  SeenGpu gpu;
  const Sight sight =
      of_gpu || type == NVML_MEMORY_UTILIZATION_SAMPLES ? see_device(device, &gpu) : Sight::kNothing;
  if (sight == Sight::kClosed) return NVML_ERROR_UNKNOWN;
  if (sight == Sight::kNothing || sampleCount == nullptr || sampleValType == nullptr ||
      (samples != nullptr && *sampleCount == 0)) {
    return real<fn::nvmlDeviceGetSamples>(device, type, lastSeenTimeStamp, sampleValType, sampleCount,
                                          samples);
  }
  nvmlUtilization_t whole = {};
  const nvmlReturn_t result = real<fn::nvmlDeviceGetUtilizationRates>(device, &whole);
  if (result != NVML_SUCCESS) return result;
  const uint64_t now_us = realtime_us();
  if (lastSeenTimeStamp >= now_us) return NVML_ERROR_NOT_FOUND;
  *sampleCount = 1;
  *sampleValType = NVML_VALUE_TYPE_UNSIGNED_INT;
  if (samples == nullptr) return NVML_SUCCESS;
  const Busy used = used_of_share(device, gpu, {whole.gpu, whole.memory});
  samples->timeStamp = now_us;
  samples->sampleValue = {};
  samples->sampleValue.uiVal = of_gpu ? used.gpu : used.memory;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, Sample* utilization,
                                             unsigned int* processSamplesCount,
                                             unsigned long long lastSeenTimeStamp) noexcept {
  SeenGpu gpu;
  const Sight sight = processSamplesCount != nullptr ? see_device(device, &gpu) : Sight::kNothing;
  if (sight == Sight::kClosed) return NVML_ERROR_UNKNOWN;
  if (sight == Sight::kNothing) {
    return real<fn::nvmlDeviceGetProcessUtilization>(device, utilization, processSamplesCount,
                                                     lastSeenTimeStamp);
  }
  return list_own<Sample>(
      Residents(gpu),
      [=](unsigned* room, Sample* out) {
        return real<fn::nvmlDeviceGetProcessUtilization>(device, out, room, lastSeenTimeStamp);
      },
      [&](Sample& entry, const Residents::Resident&) { show_use(gpu, entry); },
      [=](const Sample* own, unsigned count) {
        const nvmlReturn_t result = hand_out(own, count, processSamplesCount, utilization);
        return count == 0 ? NVML_ERROR_NOT_FOUND : result;
      });
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
    nvmlDevice_t device, nvmlProcessesUtilizationInfo_t* procesesUtilInfo) noexcept {
  using Entry = nvmlProcessUtilizationInfo_v1_t;
  SeenGpu gpu;
  const Sight sight = procesesUtilInfo != nullptr ? see_device(device, &gpu) : Sight::kNothing;
  if (sight == Sight::kClosed) return NVML_ERROR_UNKNOWN;
  if (sight == Sight::kNothing) {
    return real<fn::nvmlDeviceGetProcessesUtilizationInfo>(device, procesesUtilInfo);
  }
  return list_own<Entry>(
      Residents(gpu),
      [=](unsigned* room, Entry* out) {
        nvmlProcessesUtilizationInfo_t all = *procesesUtilInfo;
        all.processSamplesCount = *room;
        all.procUtilArray = out;
        const nvmlReturn_t result = real<fn::nvmlDeviceGetProcessesUtilizationInfo>(device, &all);
        *room = all.processSamplesCount;
        return result;
      },
      [&](Entry& entry, const Residents::Resident&) { show_use(gpu, entry); },
      [=](const Entry* own, unsigned count) {
        const nvmlReturn_t result =
            hand_out(own, count, &procesesUtilInfo->processSamplesCount, procesesUtilInfo->procUtilArray);
        return count == 0 ? NVML_ERROR_NOT_FOUND : result;
      });
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                          nvmlAccountingStats_t* stats) noexcept {
  return accounting_of_slice(device, pid, stats, [=](uint32_t listed) {
    return real<fn::nvmlDeviceGetAccountingStats>(device, listed, stats);
  });
}
nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t* stats) noexcept {
  const uint32_t pid = stats != nullptr ? stats->pid : 0;
  const nvmlReturn_t result = accounting_of_slice(device, pid, stats, [=](uint32_t listed) {
    if (stats != nullptr) stats->pid = listed;
    return real<fn::nvmlDeviceGetAccountingStats_v2>(device, stats);
  });
  if (stats != nullptr) stats->pid = pid;
  return result;
}

// --- Performance counters (GPM) count everybody's work alike, and nothing tells the slice's part of it.

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t* gpmSupport) noexcept {
  return show_slice(real<fn::nvmlGpmQueryDeviceSupport>(device, gpmSupport), device, [=](const SeenGpu&) {
    gpmSupport->isSupportedDevice = 0;
    return NVML_SUCCESS;
  });
}
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t gpmSample) noexcept {
  SeenGpu gpu;
  if (see_device(device, &gpu) != Sight::kNothing) return NVML_ERROR_NOT_SUPPORTED;
  return real<fn::nvmlGpmSampleGet>(device, gpmSample);
}
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpuInstanceId,
                                 nvmlGpmSample_t gpmSample) noexcept {
  SeenGpu gpu;
  if (see_device(device, &gpu) != Sight::kNothing) return NVML_ERROR_NOT_SUPPORTED;
  return real<fn::nvmlGpmMigSampleGet>(device, gpuInstanceId, gpmSample);
}

}  // namespace hook
