// SPDX-License-Identifier: Apache-2.0
//
// A libcuda.so.1 that costs nothing: every function succeeds at once. Here are only those whose results a
// caller needs in order to go on: one device, contexts and streams that are numbers, addresses that are never
// reused, and lookups. No work ever takes time, so everything is complete when it is asked about.
//
// For benchmarks of what lies above the driver, and for tests that need a driver but no GPU time.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "generated/null/declarations.inc"
#include "generated/null/driver_counts.h"
#include "generated/null/names.inc"

extern "C" __attribute__((visibility("hidden"))) void* const null_driver_exports[];

namespace {

constexpr CUdevice kDevice = 0;
constexpr size_t kDeviceBytes = size_t{80} << 30;
constexpr int kDriverVersion = 13000;
constexpr float kElapsedMs = 0.001f;  // between any two events: who measures gets an answer to go by

struct Lookup {
  uint16_t base_name;
  int version;
  int per_thread;
  uint16_t index;
};

constexpr Lookup kLookups[] = {
#define DRIVER_LOOKUP(...) {__VA_ARGS__},
#include "generated/null/lookup.inc"
#undef DRIVER_LOOKUP
};

std::atomic<uint64_t> next_address{0x700000000000};
std::atomic<uint64_t> next_handle{0x1000};
thread_local CUcontext current;
CUcontext const kPrimary = reinterpret_cast<CUcontext>(0x100);

template <typename Handle>
CUresult make(Handle* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<Handle>(next_handle.fetch_add(0x10, std::memory_order_relaxed));
  return CUDA_SUCCESS;
}

template <typename T>
CUresult answer(T* out, T value) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = value;
  return CUDA_SUCCESS;
}

CUresult make_context(CUcontext* out) {
  CUresult result = make(out);
  if (result == CUDA_SUCCESS) current = *out;
  return result;
}

CUresult allocate(CUdeviceptr* out, size_t bytes) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  size_t rounded = (bytes + 511) & ~size_t{511};
  *out = next_address.fetch_add(rounded, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

int find_base(const char* symbol) {
  int low = 0, high = driver_table::kBaseCount;
  while (low < high) {
    int middle = (low + high) / 2;
    int order = strcmp(driver_table::kNames + driver_table::kBaseName[middle], symbol);
    if (order == 0) return middle;
    if (order < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return -1;
}

// The greatest version not above the caller's; the per-thread form where it was asked for and exists.
CUdriverProcAddressQueryResult look_up(const char* symbol, void** pfn, int version, uint64_t flags) {
  *pfn = nullptr;
  int base = find_base(symbol);
  if (base < 0) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  const Lookup* end = kLookups + driver_table::kBaseFirstLookup[base + 1];
  const Lookup* plain = nullptr;
  const Lookup* twin = nullptr;
  for (const Lookup* row = kLookups + driver_table::kBaseFirstLookup[base]; row != end; ++row) {
    if (row->version > version) continue;
    (row->per_thread ? twin : plain) = row;
  }
  const Lookup* chosen = per_thread && twin != nullptr ? twin : plain;
  if (chosen == nullptr) return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  *pfn = null_driver_exports[chosen->index];
  return CU_GET_PROC_ADDRESS_SUCCESS;
}

}  // namespace

CUresult null_cuDriverGetVersion(int* version) { return answer(version, kDriverVersion); }

// --- The device.

CUresult null_cuDeviceGetCount(int* count) { return answer(count, 1); }
CUresult null_cuDeviceGet(CUdevice* device, int ordinal) {
  return ordinal == 0 ? answer(device, kDevice) : CUDA_ERROR_INVALID_DEVICE;
}
CUresult null_cuDeviceGetName(char* name, int length, CUdevice) {
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  strncpy(name, "Null device", static_cast<size_t>(length) - 1);
  name[length - 1] = 0;
  return CUDA_SUCCESS;
}
CUresult null_cuDeviceGetUuid(CUuuid* uuid, CUdevice) {
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(i + 1);
  return CUDA_SUCCESS;
}
CUresult null_cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return null_cuDeviceGetUuid(uuid, device); }
CUresult null_cuDeviceTotalMem_v2(size_t* bytes, CUdevice) { return answer(bytes, kDeviceBytes); }
CUresult null_cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) { return answer(value, 1); }

// --- Contexts.

CUresult null_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return answer(context, kPrimary); }
CUresult null_cuDevicePrimaryCtxGetState(CUdevice, unsigned int* flags, int* active) {
  CUresult result = answer(flags, 0u);
  return result == CUDA_SUCCESS ? answer(active, 1) : result;
}
CUresult null_cuCtxCreate_v2(CUcontext* context, unsigned int, CUdevice) { return make_context(context); }
CUresult null_cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int, unsigned int, CUdevice) {
  return make_context(context);
}
CUresult null_cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned int, CUdevice) {
  return make_context(context);
}
CUresult null_cuCtxDestroy_v2(CUcontext context) {
  if (current == context) current = nullptr;
  return CUDA_SUCCESS;
}
CUresult null_cuCtxGetCurrent(CUcontext* context) { return answer(context, current); }
CUresult null_cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
CUresult null_cuCtxPushCurrent_v2(CUcontext context) { return null_cuCtxSetCurrent(context); }
CUresult null_cuCtxPopCurrent_v2(CUcontext* context) {
  if (context != nullptr) *context = current;
  return CUDA_SUCCESS;
}
CUresult null_cuCtxGetDevice(CUdevice* device) { return answer(device, kDevice); }
CUresult null_cuCtxGetDevice_v2(CUdevice* device, CUcontext) { return answer(device, kDevice); }
CUresult null_cuCtxGetApiVersion(CUcontext, unsigned int* version) { return answer(version, 13000u); }

// --- Streams and events.

CUresult null_cuStreamCreate(CUstream* stream, unsigned int) { return make(stream); }
CUresult null_cuStreamCreateWithPriority(CUstream* stream, unsigned int, int) { return make(stream); }
CUresult null_cuStreamGetCtx(CUstream, CUcontext* context) {
  return answer(context, current ? current : kPrimary);
}
CUresult null_cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  return answer(status, CU_STREAM_CAPTURE_STATUS_NONE);
}
CUresult null_cuEventCreate(CUevent* event, unsigned int) { return make(event); }
CUresult null_cuEventElapsedTime(float* ms, CUevent, CUevent) { return answer(ms, kElapsedMs); }
CUresult null_cuEventElapsedTime_v2(float* ms, CUevent, CUevent) { return answer(ms, kElapsedMs); }

// --- Memory.

CUresult null_cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) { return allocate(address, bytes); }
CUresult null_cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int) {
  return allocate(address, bytes);
}
CUresult null_cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                                 unsigned int) {
  size_t rounded = (width + 511) & ~size_t{511};
  CUresult result = answer(pitch, rounded);
  return result == CUDA_SUCCESS ? allocate(address, rounded * height) : result;
}
CUresult null_cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream) {
  return allocate(address, bytes);
}
CUresult null_cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  CUresult result = answer(free_bytes, kDeviceBytes);
  return result == CUDA_SUCCESS ? answer(total_bytes, kDeviceBytes) : result;
}

// --- Lookups.

CUresult null_cuGetProcAddress(const char* symbol, void** pfn, int version, cuuint64_t flags) {
  if (symbol == nullptr || pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return look_up(symbol, pfn, version, flags) == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS
                                                                             : CUDA_ERROR_NOT_FOUND;
}
CUresult null_cuGetProcAddress_v2(const char* symbol, void** pfn, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUdriverProcAddressQueryResult found = look_up(symbol, pfn, version, flags);
  if (status != nullptr) *status = found;
  return found == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
