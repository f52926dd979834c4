// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered allocation. What counts is what a pool has taken from the GPU, not what it has lent out:
// freed memory stays in the pool. So an allocation is charged with the most that the pool may grow by, and
// the charge is set to what the pool reserves as soon as the driver has answered.
#include "interpose/pools.h"

#include "interpose/allocations.h"
#include "interpose/futex_lock.h"
#include "interpose/quota.h"

namespace hook {
namespace {

constexpr int kMaxPools = 256;
constexpr uint64_t kPoolGranule = uint64_t{32} << 20;  // pools grow by multiples of this

struct Pool {
  CUmemoryPool handle;
  SliceGpu gpu;              // whose slice is charged; nobody if there is none
  int device;                // kNoDevice: memory of the host, or of another process, which was charged
  uint64_t covered_bytes;    // charged to the slice
  uint64_t in_flight_bytes;  // the part of it that calls under way have taken for growth
  uint32_t changes;          // to tell whether a reading of the driver's figure is still fresh
};

constexpr int kNoDevice = -1;

constinit gate::FutexLock books;  // of everything below
constinit Pool pools[kMaxPools] = {};
constinit int pool_count = 0;

Pool* find_locked(CUmemoryPool handle) {
  for (int i = 0; i < pool_count; i++) {
    if (pools[i].handle == handle) return &pools[i];
  }
  return nullptr;
}

bool attribute(CUmemoryPool pool, CUmemPool_attribute which, uint64_t* value) {
  cuuint64_t answer = 0;
  if (real<fn::cuMemPoolGetAttribute>(pool, which, &answer) != CUDA_SUCCESS) return false;
  *value = answer;
  return true;
}

// Sets the charge of a pool to what it reserves now, and ends the charge for growth of a call that took
// `taken_bytes`. false: the pool has grown by more than was taken, and the slice has no room for that.
bool settle(const InFlight& call, CUmemoryPool handle, uint64_t taken_bytes) {
  constexpr int kReadings = 4;
  uint64_t excess_bytes = 0;
  uint64_t missing_bytes = 0;
  for (int reading = 1;; reading++) {
    uint32_t changes;
    {
      const gate::Locked locked(books);
      const Pool* pool = find_locked(handle);
      if (pool == nullptr) return true;
      changes = pool->changes;
    }
    uint64_t reserved_bytes;
    const bool known = attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes);
    const gate::Locked locked(books);
    Pool* pool = find_locked(handle);
    if (pool == nullptr) return true;
    // Another call came between: its reading may be newer than ours.
    if (known && pool->changes != changes && reading < kReadings) continue;
    pool->in_flight_bytes -= taken_bytes;
    pool->changes++;
    const uint64_t target_bytes = known ? reserved_bytes + pool->in_flight_bytes : pool->covered_bytes;
    if (pool->covered_bytes > target_bytes) {
      excess_bytes = pool->covered_bytes - target_bytes;
    } else {
      missing_bytes = target_bytes - pool->covered_bytes;
    }
    pool->covered_bytes = target_bytes;
    break;
  }
  add_pooled(call, static_cast<int64_t>(missing_bytes - excess_bytes));
  if (excess_bytes != 0) give_back(call, excess_bytes);
  if (missing_bytes == 0 || try_take(call, missing_bytes)) return true;
  add_pooled(call, -static_cast<int64_t>(missing_bytes));
  const gate::Locked locked(books);
  if (Pool* pool = find_locked(handle)) pool->covered_bytes -= missing_bytes;
  return false;
}

void note_taken(const InFlight& call, CUmemoryPool handle, uint64_t taken_bytes) {
  const gate::Locked locked(books);
  Pool* pool = find_locked(handle);
  if (pool == nullptr) return;
  pool->covered_bytes += taken_bytes;
  pool->in_flight_bytes += taken_bytes;
  pool->changes++;
  add_pooled(call, static_cast<int64_t>(taken_bytes));
}

// The pools of a GPU, copied so that nothing is held while the driver is asked.
int pools_of(const SliceGpu& gpu, CUmemoryPool (&handles)[kMaxPools]) {
  const gate::Locked locked(books);
  int count = 0;
  for (int i = 0; i < pool_count; i++) {
    if (same_gpu(pools[i].gpu, gpu)) handles[count++] = pools[i].handle;
  }
  return count;
}

// The GPU whose slice pays for a pool that is remembered.
SliceGpu known_gpu(CUmemoryPool handle) {
  const gate::Locked locked(books);
  const Pool* pool = find_locked(handle);
  return pool != nullptr ? pool->gpu : SliceGpu{};
}

// Which GPU an unknown pool is on: it is some device's default pool, or of a kind we don't count.
int device_of_pool(CUmemoryPool handle) {
  int type = CU_MEM_LOCATION_TYPE_DEVICE;
  if (real<fn::cuMemPoolGetAttribute>(handle, CU_MEMPOOL_ATTR_LOCATION_TYPE, &type) == CUDA_SUCCESS) {
    if (type != CU_MEM_LOCATION_TYPE_DEVICE) return kNoDevice;
    int device;
    if (real<fn::cuMemPoolGetAttribute>(handle, CU_MEMPOOL_ATTR_LOCATION_ID, &device) == CUDA_SUCCESS) {
      return device;
    }
  }
  int devices = 0;
  real<fn::cuDeviceGetCount>(&devices);
  for (int device = 0; device < devices; device++) {
    CUmemoryPool pool;
    if (real<fn::cuDeviceGetDefaultMemPool>(&pool, device) == CUDA_SUCCESS && pool == handle) {
      return device;
    }
  }
  CUdevice current;
  return real<fn::cuCtxGetDevice>(&current) == CUDA_SUCCESS ? current : kNoDevice;
}

// From now on the pool's memory is charged to the slice of the device, if it has one. false: no room for a
// further pool, it is not charged here; the broker finds it as overhead.
bool remember_pool(CUmemoryPool handle, int device) {
  const SliceGpu gpu = device == kNoDevice ? SliceGpu{} : gpu_of_device(device);
  const gate::Locked locked(books);
  if (find_locked(handle) != nullptr) return true;
  if (pool_count == kMaxPools) return false;
  pools[pool_count++] = {handle, gpu, device, 0, 0, 0};
  return true;
}

// Who pays for what a pool takes. Remembers the pool.
Standing standing_in_pool(CUmemoryPool handle, int* device, SliceGpu* gpu) {
  bool known = false;
  {
    const gate::Locked locked(books);
    if (const Pool* pool = find_locked(handle)) {
      *device = pool->device;
      known = true;
    }
  }
  if (!known) {
    *device = device_of_pool(handle);
    known = remember_pool(handle, *device);
  }
  if (*device == kNoDevice) return Standing::kUnlimited;
  const Standing standing = standing_on_device(*device, gpu);
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
  settle_pools(call);
  if (try_take(call, most)) return true;
  uint64_t reserved_bytes;
  uint64_t used_bytes;
  *taken_bytes = 0;
  if (attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes) &&
      attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes) && reserved_bytes >= used_bytes &&
      reserved_bytes - used_bytes >= bytes) {
    return true;
  }
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
  if (!take_growth(function, in_flight, pool, bytes, &taken_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  note_taken(in_flight, pool, taken_bytes);
  const CUresult result = ask_driver(function, in_flight, bytes, call);
  if (settle(in_flight, pool, taken_bytes) || result != CUDA_SUCCESS) return result;
  undo();
  trim_pools(in_flight);
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

}  // namespace

void settle_pools(const InFlight& call) {
  CUmemoryPool handles[kMaxPools];
  const int count = pools_of(call.gpu(), handles);
  for (int i = 0; i < count; i++) settle(call, handles[i], 0);
}

uint64_t trim_pools(const InFlight& call) {
  const SliceGpu& gpu = call.gpu();
  CUmemoryPool handles[kMaxPools];
  const int count = pools_of(gpu, handles);
  if (count == 0) return 0;
  const uint64_t before_bytes =
      limiter::slot_use(*gpu.slice->state, gpu.index, gpu.slice->slot.slot).held_bytes;
  for (int i = 0; i < count; i++) {
    real<fn::cuMemPoolTrimTo>(handles[i], size_t{0});
    settle(call, handles[i], 0);
  }
  const uint64_t after_bytes =
      limiter::slot_use(*gpu.slice->state, gpu.index, gpu.slice->slot.slot).held_bytes;
  return before_bytes > after_bytes ? before_bytes - after_bytes : 0;
}

void forget_pools() {
  books.reset();
  pool_count = 0;
}

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

// Memory of a pool goes back to the pool; only what cuMemAlloc gave has a record here.
CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) noexcept {
  return freed(dptr, [=] { return real<fn::cuMemFreeAsync>(dptr, hStream); });
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) noexcept {
  return freed(dptr, [=] { return real<fn::cuMemFreeAsync_ptsz>(dptr, hStream); });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) noexcept {
  const bool on_gpu = poolProps != nullptr && poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const int device = on_gpu ? poolProps->location.id : kNoDevice;
  SliceGpu gpu;
  if (on_gpu) {
    const CUresult refused = barred(standing_on_device(device, &gpu), device);
    if (refused != CUDA_SUCCESS) return refused;
  }
  const CUresult result = real<fn::cuMemPoolCreate>(pool, poolProps);
  if (result == CUDA_SUCCESS && membership() == Membership::kAttached) remember_pool(*pool, device);
  return result;
}

// Allocations that are still alive keep their memory until they are freed, which nobody can follow: the
// broker finds it as overhead.
CUresult cuMemPoolDestroy(CUmemoryPool pool) noexcept {
  Pool removed = {};
  {
    // Before the driver's call: the handle may be given to a new pool right after it.
    const gate::Locked locked(books);
    if (Pool* known = find_locked(pool)) {
      removed = *known;
      *known = pools[--pool_count];
    }
  }
  const InFlight in_flight(removed.gpu);
  const CUresult result = real<fn::cuMemPoolDestroy>(pool);
  if (!removed.gpu) return result;
  if (result == CUDA_SUCCESS) {
    add_pooled(in_flight, -static_cast<int64_t>(removed.covered_bytes));
    give_back(in_flight, removed.covered_bytes);
    return result;
  }
  const gate::Locked locked(books);
  if (pool_count < kMaxPools) pools[pool_count++] = removed;
  return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) noexcept {
  const InFlight in_flight(known_gpu(pool));
  const CUresult result = real<fn::cuMemPoolTrimTo>(pool, minBytesToKeep);
  if (result == CUDA_SUCCESS && in_flight.gpu()) settle(in_flight, pool, 0);
  return result;
}

// Of another process, which was charged for it.
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool_out, void* handle,
                                            CUmemAllocationHandleType handleType,
                                            unsigned long long flags) noexcept {
  const CUresult result = real<fn::cuMemPoolImportFromShareableHandle>(pool_out, handle, handleType, flags);
  if (result == CUDA_SUCCESS && membership() == Membership::kAttached) remember_pool(*pool_out, kNoDevice);
  return result;
}

}  // namespace hook
