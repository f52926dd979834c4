// SPDX-License-Identifier: Apache-2.0
//
// Which processes NVML shows: the slice's, under the pids that they have here, with the memory that the slice
// is charged for them. So what is listed adds up to what is used, also where the driver can't tell.
#include "interpose/nvml_lists.h"

namespace hook {
namespace {

// How a list is asked for without an array.
enum class Counting : uint8_t { kIsInsufficientSize, kIsSuccess };

// `ask(count, infos)` is the true function of this list.
template <typename Info, typename Ask, typename Show>
nvmlReturn_t entries_of_slice(nvmlDevice_t device, unsigned* count, Info* infos, Counting counting, Ask ask,
                              Show show) {
  SeenGpu gpu;
  const Sight sight = count != nullptr ? see_device(device, &gpu) : Sight::kNothing;
  if (sight == Sight::kClosed) return NVML_ERROR_UNKNOWN;
  if (sight == Sight::kNothing) return ask(count, infos);
  const Residents residents(gpu);
  return list_own<Info>(
      residents, ask,
      [&](Info& entry, const Residents::Resident& resident) { show(residents, entry, resident); },
      [=](const Info* own, unsigned own_count) {
        const nvmlReturn_t result = hand_out(own, own_count, count, infos);
        return infos == nullptr && counting == Counting::kIsSuccess ? NVML_SUCCESS : result;
      });
}

constexpr auto show_charge = [](const Residents& residents, auto& entry,
                                const Residents::Resident& resident) {
  entry.usedGpuMemory = residents.charge(resident.slot);
};
constexpr auto show_as_listed = [](const Residents&, auto&, const Residents::Resident&) {};

template <uint32_t function, typename Info>
nvmlReturn_t processes_of_slice(nvmlDevice_t device, unsigned* count, Info* infos) {
  return entries_of_slice(
      device, count, infos, Counting::kIsInsufficientSize,
      [=](unsigned* room, Info* out) { return real<function>(device, room, out); }, show_charge);
}

template <uint32_t function, typename Info>
nvmlReturn_t sessions_of_slice(nvmlDevice_t device, unsigned* count, Info* infos) {
  return entries_of_slice(
      device, count, infos, Counting::kIsSuccess,
      [=](unsigned* room, Info* out) { return real<function>(device, room, out); }, show_as_listed);
}

// `show(sessions, count)` gets those of the slice.
template <typename Session, typename Ask, typename Show>
nvmlReturn_t stats_of_sessions(nvmlReturn_t result, nvmlDevice_t device, Ask ask, Show show) {
  return show_slice(result, device, [=](const SeenGpu& gpu) {
    return list_own<Session>(
        Residents(gpu), ask, [](Session&, const Residents::Resident&) {},
        [=](const Session* own, unsigned count) {
          show(own, count);
          return NVML_SUCCESS;
        });
  });
}

template <typename Session>
unsigned mean_of(const Session* sessions, unsigned count, unsigned Session::*figure) {
  unsigned long long sum = 0;
  for (unsigned i = 0; i < count; i++) sum += sessions[i].*figure;
  return count == 0 ? 0 : static_cast<unsigned>(sum / count);
}

}  // namespace

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                  nvmlProcessInfo_v1_t* infos) noexcept {
  return processes_of_slice<fn::nvmlDeviceGetComputeRunningProcesses>(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_v2_t* infos) noexcept {
  return processes_of_slice<fn::nvmlDeviceGetComputeRunningProcesses_v2>(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_t* infos) noexcept {
  return processes_of_slice<fn::nvmlDeviceGetComputeRunningProcesses_v3>(device, infoCount, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                   nvmlProcessInfo_v1_t* infos) noexcept {
  return processes_of_slice<fn::nvmlDeviceGetGraphicsRunningProcesses>(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                      nvmlProcessInfo_v2_t* infos) noexcept {
  return processes_of_slice<fn::nvmlDeviceGetGraphicsRunningProcesses_v2>(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                      nvmlProcessInfo_t* infos) noexcept {
  return processes_of_slice<fn::nvmlDeviceGetGraphicsRunningProcesses_v3>(device, infoCount, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_v1_t* infos) noexcept {
  return processes_of_slice<fn::nvmlDeviceGetMPSComputeRunningProcesses>(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                        nvmlProcessInfo_v2_t* infos) noexcept {
  return processes_of_slice<fn::nvmlDeviceGetMPSComputeRunningProcesses_v2>(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                        nvmlProcessInfo_t* infos) noexcept {
  return processes_of_slice<fn::nvmlDeviceGetMPSComputeRunningProcesses_v3>(device, infoCount, infos);
}

// The same lists in one structure, which says which is wanted.
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_t* plist) noexcept {
  const auto ask = [=](unsigned* room, nvmlProcessDetail_v1_t* out) {
    nvmlProcessDetailList_t list = *plist;
    list.numProcArrayEntries = *room;
    list.procArray = out;
    const nvmlReturn_t result = real<fn::nvmlDeviceGetRunningProcessDetailList>(device, &list);
    *room = list.numProcArrayEntries;
    return result;
  };
  if (plist == nullptr) return real<fn::nvmlDeviceGetRunningProcessDetailList>(device, plist);
  return entries_of_slice(device, &plist->numProcArrayEntries, plist->procArray,
                          Counting::kIsInsufficientSize, ask, show_charge);
}

// --- Accounting. Of the slice's processes that live: who the others were nobody knows any more.

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int* count,
                                         unsigned int* pids) noexcept {
  return entries_of_slice(
      device, count, pids, Counting::kIsInsufficientSize,
      [=](unsigned* room, unsigned* out) { return real<fn::nvmlDeviceGetAccountingPids>(device, room, out); },
      show_as_listed);
}

// --- Video sessions.

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned int* sessionCount,
                                          nvmlEncoderSessionInfo_t* sessionInfos) noexcept {
  return sessions_of_slice<fn::nvmlDeviceGetEncoderSessions>(device, sessionCount, sessionInfos);
}
nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned int* sessionCount,
                                      nvmlFBCSessionInfo_t* sessionInfo) noexcept {
  return sessions_of_slice<fn::nvmlDeviceGetFBCSessions>(device, sessionCount, sessionInfo);
}

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int* sessionCount,
                                       unsigned int* averageFps, unsigned int* averageLatency) noexcept {
  using Session = nvmlEncoderSessionInfo_t;
  return stats_of_sessions<Session>(
      real<fn::nvmlDeviceGetEncoderStats>(device, sessionCount, averageFps, averageLatency), device,
      [=](unsigned* room, Session* out) { return real<fn::nvmlDeviceGetEncoderSessions>(device, room, out); },
      [=](const Session* own, unsigned count) {
        *sessionCount = count;
        *averageFps = mean_of(own, count, &Session::averageFps);
        *averageLatency = mean_of(own, count, &Session::averageLatency);
      });
}
nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t* fbcStats) noexcept {
  using Session = nvmlFBCSessionInfo_t;
  return stats_of_sessions<Session>(
      real<fn::nvmlDeviceGetFBCStats>(device, fbcStats), device,
      [=](unsigned* room, Session* out) { return real<fn::nvmlDeviceGetFBCSessions>(device, room, out); },
      [=](const Session* own, unsigned count) {
        fbcStats->sessionsCount = count;
        fbcStats->averageFPS = mean_of(own, count, &Session::averageFPS);
        fbcStats->averageLatency = mean_of(own, count, &Session::averageLatency);
      });
}

}  // namespace hook
