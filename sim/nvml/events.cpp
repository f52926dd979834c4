// SPDX-License-Identifier: Apache-2.0
//
// Event sets. A simulated device has no faults of its own accord, so a wait ends with its time.
#include <errno.h>
#include <time.h>

#include "sim/nvml/answers.h"

using sim::answer;

nvmlReturn_t sim_nvmlEventSetCreate(nvmlEventSet_t* set) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  *set = reinterpret_cast<nvmlEventSet_t>(new char);
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlEventSetFree(nvmlEventSet_t set) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  delete reinterpret_cast<char*>(set);
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long* types) {
  return answer(handle, types, nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError);
}

nvmlReturn_t sim_nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned long long supported;
  if (const nvmlReturn_t error = sim_nvmlDeviceGetSupportedEventTypes(handle, &supported)) return error;
  return types & ~supported ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeout_ms) {
  if (!sim::nvml_is_initialized()) return NVML_ERROR_UNINITIALIZED;
  if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
  timespec left = {};
  left.tv_sec = timeout_ms / 1000;
  left.tv_nsec = timeout_ms % 1000 * 1'000'000l;
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
  return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t sim_nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeout_ms) {
  return sim_nvmlEventSetWait_v2(set, data, timeout_ms);
}
