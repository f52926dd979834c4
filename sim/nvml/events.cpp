// SPDX-License-Identifier: Apache-2.0
//
// Event sets. A simulated device has no errors of its own accord; `simgpu fault` makes them.
#include <algorithm>
#include <mutex>
#include <vector>

#include "sim/locked_device.h"
#include "sim/nvml/answers.h"

namespace sim {
namespace {

constexpr uint64_t kMsNs = 1'000'000;

struct EventSet {
  struct Registered {
    int device;
    uint64_t next_xid;  // those before it came before the registration, or were told
  };
  std::mutex mutex;
  std::vector<Registered> devices;
};

EventSet* set_of(nvmlEventSet_t set) { return reinterpret_cast<EventSet*>(set); }

bool next_event(EventSet& set, nvmlEventData_t* data) {
  std::lock_guard lock(set.mutex);
  for (EventSet::Registered& registered : set.devices) {
    if (registered.next_xid >= Node::get().xid_count(registered.device)) continue;
    *data = {};
    data->device = handle_of(registered.device);
    data->eventType = nvmlEventTypeXidCriticalError;
    data->eventData = Node::get().xid(registered.device, registered.next_xid++);
    data->gpuInstanceId = data->computeInstanceId = 0xffffffff;
    return true;
  }
  return false;
}

}  // namespace
}  // namespace sim

using sim::answer;
using sim::Node;

nvmlReturn_t sim_nvmlEventSetCreate(nvmlEventSet_t* set) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  *set = reinterpret_cast<nvmlEventSet_t>(new sim::EventSet);
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlEventSetFree(nvmlEventSet_t set) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  delete sim::set_of(set);
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long* types) {
  return answer(handle, types, nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError);
}

nvmlReturn_t sim_nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned long long supported;
  if (const nvmlReturn_t error = sim_nvmlDeviceGetSupportedEventTypes(handle, &supported)) return error;
  if (types & ~supported) return NVML_ERROR_NOT_SUPPORTED;
  if (!(types & nvmlEventTypeXidCriticalError)) return NVML_SUCCESS;
  int device;
  if (const nvmlReturn_t error = sim::find_device(handle, &device)) return error;
  sim::EventSet& events = *sim::set_of(set);
  std::lock_guard lock(events.mutex);
  const bool is_new = std::none_of(events.devices.begin(), events.devices.end(),
                                   [device](const auto& registered) { return registered.device == device; });
  if (is_new) events.devices.push_back({device, Node::get().xid_count(device)});
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeout_ms) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
  const uint64_t until_ns = sim::clock_ns() + timeout_ms * sim::kMsNs;
  for (;;) {
    const uint32_t seen = Node::get().events();
    if (sim::next_event(*sim::set_of(set), data)) return NVML_SUCCESS;
    if (sim::clock_ns() >= until_ns) return NVML_ERROR_TIMEOUT;
    Node::get().wait_for_event(seen, until_ns);
  }
}

nvmlReturn_t sim_nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeout_ms) {
  return sim_nvmlEventSetWait_v2(set, data, timeout_ms);
}
