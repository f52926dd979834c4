// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered allocation, from pools.
#include "interpose/allocations.h"
#include "interpose/graph_memory.h"
#include "interpose/locations.h"
#include "interpose/quota.h"
#include "interpose/reservoirs.h"

namespace hook {
namespace {

constexpr uint64_t kPoolGranule = uint64_t{32} << 20;  // pools grow by multiples of this

// Which GPU an unknown pool is on: it is some device's default pool, or of a kind we don't count.
Reservoir reservoir_of_pool(CUmemoryPool handle) {
  CUdevice current = kNoDevice;
  real<fn::cuCtxGetDevice>(&current);
  int type = CU_MEM_ALLOCATION_TYPE_PINNED;
  real<fn::cuMemPoolGetAttribute>(handle, CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &type);
  const bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  CUmemLocation location = {};
  int location_type = CU_MEM_LOCATION_TYPE_DEVICE;
  if (real<fn::cuMemPoolGetAttribute>(handle, CU_MEMPOOL_ATTR_LOCATION_TYPE, &location_type) ==
      CUDA_SUCCESS) {
    location.type = static_cast<CUmemLocationType>(location_type);
    if (!is_on_device(location)) return {managed ? current : kNoDevice, managed};
    int device;
    if (real<fn::cuMemPoolGetAttribute>(handle, CU_MEMPOOL_ATTR_LOCATION_ID, &device) == CUDA_SUCCESS) {
      return {device, managed};
    }
  }
  int devices = 0;
  real<fn::cuDeviceGetCount>(&devices);
  for (int device = 0; device < devices; device++) {
    CUmemoryPool pool;
    if (real<fn::cuDeviceGetDefaultMemPool>(&pool, device) == CUDA_SUCCESS && pool == handle) {
      return {device, false};
    }
  }
  return {current, managed};
}

// Who pays for what a pool takes. Remembers the pool.
Standing standing_in_pool(CUmemoryPool handle, int* device, SliceGpu* gpu) {
  Reservoir pool;
  bool known = find_reservoir(pool_key(handle), &pool);
  if (!known) {
    pool = reservoir_of_pool(handle);
    known = remember_reservoir(pool_key(handle), pool);
  }
  *device = pool.device;
  if (pool.device == kNoDevice) return Standing::kUnlimited;
  const Standing standing = standing_on_device(pool.device, gpu);
  return standing == Standing::kLimited && !known ? Standing::kUnlimited : standing;
}

// Takes for the growth of a pool by an allocation; how much, or nothing after a refusal was reported.
// A pool that has free memory may not need to grow: then the call is tried with nothing taken when the slice
// is full.
bool take_growth(const char* function, InFlight& call, CUmemoryPool pool, uint64_t bytes,
                 uint64_t* taken_bytes) {
  const uint64_t most =
      bytes > shm::kLedgerBytesMask ? bytes : (bytes + kPoolGranule - 1) & ~(kPoolGranule - 1);
  *taken_bytes = most;
  if (try_take(call, most)) return true;
  settle_reservoirs(call);
  if (try_take(call, most)) return true;
  ReservoirUse use;
  *taken_bytes = 0;
  if (reservoir_use(pool_key(pool), &use) && use.unused_bytes() >= bytes) return true;
  // The pool may be made to grow by less; if it grows by more than there is, the caller undoes that.
  *taken_bytes = granules(bytes);
  return take(function, call, *taken_bytes) == CUDA_SUCCESS;
}

template <typename Call, typename Undo>
CUresult charged_from(const char* function, CUmemoryPool pool, uint64_t bytes, Call call, Undo undo) {
  SliceGpu gpu;
  int device;
  const Standing standing = standing_in_pool(pool, &device, &gpu);
  if (const CUresult refused = barred(standing, device); refused != CUDA_SUCCESS) return refused;
  if (standing == Standing::kUnlimited || bytes == 0) return call();
  uint64_t taken_bytes;
  InFlight in_flight(gpu);
  await_first_measurement(in_flight);
  if (!take_growth(function, in_flight, pool, bytes, &taken_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  note_growth(in_flight, pool_key(pool), taken_bytes);
  const CUresult result = ask_driver(function, in_flight, bytes, call);
  if (settle(in_flight, pool_key(pool), taken_bytes) || result != CUDA_SUCCESS) return result;
  undo();
  trim_reservoirs(in_flight);
  report_refusal(function, gpu, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Allocations in a capture become nodes of a graph; they take nothing until it is launched.
bool is_capturing(CUresult asked, CUstreamCaptureStatus status) {
  return asked == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

bool device_of_stream(CUstream stream, CUdevice* device) {
  const bool is_default = stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  if (!is_default && driver_has(fn::cuStreamGetDevice)) {
    return real<fn::cuStreamGetDevice>(stream, device) == CUDA_SUCCESS;
  }
  return real<fn::cuCtxGetDevice>(device) == CUDA_SUCCESS;
}

// The four allocating functions: `call` is the driver's, `status` asks for the capture status of the stream,
// `undo` frees in its order. `pool` is nullptr for the current pool of the stream's device.
template <typename Call, typename Status, typename Undo>
CUresult allocate_async(const char* function, CUdeviceptr* pointer, uint64_t bytes, CUmemoryPool pool,
                        CUstream stream, Call call, Status status, Undo undo) {
  const Membership member = membership();
  if (member == Membership::kClosed) return CUDA_ERROR_NOT_INITIALIZED;
  if (member == Membership::kTransparent || pointer == nullptr) return call();
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = status(&capture);
  if (is_capturing(asked, capture)) return call();
  if (pool == nullptr) {
    CUdevice device;
    if (!device_of_stream(stream, &device) || real<fn::cuDeviceGetMemPool>(&pool, device) != CUDA_SUCCESS)
      return call();
  }
  return charged_from(function, pool, bytes, call, undo);
}

// Memory of a pool goes back to the pool; only what cuMemAlloc gave has a record.
template <typename Call>
CUresult freed_async(CUdeviceptr pointer, Call call) {
  return freed(pointer, [=] {
    const CUresult result = call();
    if (result == CUDA_SUCCESS) note_returned_to_reservoir();
    return result;
  });
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) noexcept {
  return allocate_async(
      "cuMemAllocAsync", dptr, bytesize, nullptr, hStream,
      [=] { return real<fn::cuMemAllocAsync>(dptr, bytesize, hStream); },
      [=](CUstreamCaptureStatus* status) { return real<fn::cuStreamIsCapturing>(hStream, status); },
      [=] { real<fn::cuMemFreeAsync>(*dptr, hStream); });
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) noexcept {
  return allocate_async(
      "cuMemAllocAsync", dptr, bytesize, nullptr, hStream,
      [=] { return real<fn::cuMemAllocAsync_ptsz>(dptr, bytesize, hStream); },
      [=](CUstreamCaptureStatus* status) { return real<fn::cuStreamIsCapturing_ptsz>(hStream, status); },
      [=] { real<fn::cuMemFreeAsync_ptsz>(*dptr, hStream); });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream) noexcept {
  const auto call = [=] { return real<fn::cuMemAllocFromPoolAsync>(dptr, bytesize, pool, hStream); };
  if (pool == nullptr) return call();
  return allocate_async(
      "cuMemAllocFromPoolAsync", dptr, bytesize, pool, hStream, call,
      [=](CUstreamCaptureStatus* status) { return real<fn::cuStreamIsCapturing>(hStream, status); },
      [=] { real<fn::cuMemFreeAsync>(*dptr, hStream); });
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream) noexcept {
  const auto call = [=] { return real<fn::cuMemAllocFromPoolAsync_ptsz>(dptr, bytesize, pool, hStream); };
  if (pool == nullptr) return call();
  return allocate_async(
      "cuMemAllocFromPoolAsync", dptr, bytesize, pool, hStream, call,
      [=](CUstreamCaptureStatus* status) { return real<fn::cuStreamIsCapturing_ptsz>(hStream, status); },
      [=] { real<fn::cuMemFreeAsync_ptsz>(*dptr, hStream); });
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) noexcept {
  return freed_async(dptr, [=] { return real<fn::cuMemFreeAsync>(dptr, hStream); });
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) noexcept {
  return freed_async(dptr, [=] { return real<fn::cuMemFreeAsync_ptsz>(dptr, hStream); });
}

// A pool of managed memory counts in full, as cuMemAllocManaged does, wherever it prefers to be; one without
// a device is charged to that of its first allocation.
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) noexcept {
  const bool on_gpu = poolProps != nullptr && is_on_device(poolProps->location);
  const int device = on_gpu ? device_of(poolProps->location) : kNoDevice;
  SliceGpu gpu;
  if (on_gpu) {
    const CUresult refused = barred(standing_on_device(device, &gpu), device);
    if (refused != CUDA_SUCCESS) return refused;
  }
  const CUresult result = real<fn::cuMemPoolCreate>(pool, poolProps);
  if (result != CUDA_SUCCESS || membership() != Membership::kAttached) return result;
  const bool managed = poolProps->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (on_gpu || !managed) remember_reservoir(pool_key(*pool), {device, managed});
  return result;
}

// Allocations that are still alive keep their memory until they are freed, which nobody can follow: the
// broker finds it as overhead.
CUresult cuMemPoolDestroy(CUmemoryPool pool) noexcept {
  // Before the driver's call: the handle may be given to a new pool right after it.
  const EndingReservoir ending = take_reservoir(pool_key(pool));
  const InFlight in_flight(ending.gpu);
  const CUresult result = real<fn::cuMemPoolDestroy>(pool);
  if (result == CUDA_SUCCESS) {
    reservoir_is_gone(in_flight, ending);
  } else {
    put_reservoir_back(ending);
  }
  return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) noexcept {
  Reservoir reservoir;
  SliceGpu gpu;
  if (find_reservoir(pool_key(pool), &reservoir) && reservoir.device != kNoDevice)
    gpu = gpu_of_device(reservoir.device);
  const InFlight in_flight(gpu);
  const CUresult result = real<fn::cuMemPoolTrimTo>(pool, minBytesToKeep);
  if (result == CUDA_SUCCESS && gpu) settle(in_flight, pool_key(pool), 0);
  return result;
}

// Of another process, which was charged for it.
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool_out, void* handle,
                                            CUmemAllocationHandleType handleType,
                                            unsigned long long flags) noexcept {
  const CUresult result = real<fn::cuMemPoolImportFromShareableHandle>(pool_out, handle, handleType, flags);
  if (result == CUDA_SUCCESS && membership() == Membership::kAttached) {
    remember_reservoir(pool_key(*pool_out), {kNoDevice, false});
  }
  return result;
}

}  // namespace hook
