// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/pools.h"

#include <algorithm>

#include "sim/driver/arena.h"
#include "sim/driver/capture.h"
#include "sim/driver/graph_memory.h"
#include "sim/driver/stream.h"

struct CUmemPoolHandle_st {
  static constexpr uint32_t kMagic = 0x706f6f31;
  uint32_t magic = kMagic;
  const CUdevice device;
  const CUmemPoolProps props;

  std::mutex mutex;  // guards what follows
  sim::BlockHeap heap;
  uint64_t reserved_bytes = 0, reserved_high_bytes = 0;
  uint64_t used_bytes = 0, used_high_bytes = 0;
  uint64_t release_threshold_bytes = 0;
  int reuse_follow_events = 1, reuse_opportunistic = 1, reuse_internal = 1;
  CUmemAccess_flags peer_access = CU_MEM_ACCESS_FLAGS_PROT_NONE;

  CUmemPoolHandle_st(CUdevice device, const CUmemPoolProps& props) : device(device), props(props) {}
};

namespace sim {
namespace {

constexpr uint64_t kChunk = 32ull << 20;
constexpr uint64_t kUnit = 512;

struct DevicePools {
  std::mutex mutex;  // guards what follows; taken before a pool's
  std::vector<CUmemoryPool> all;
  CUmemoryPool standard = nullptr;  // the device's own
  CUmemoryPool current = nullptr;   // what cuMemAllocAsync takes from
  std::atomic<bool> freed{false};   // something was freed since the last synchronisation
};

DevicePools& pools_of(CUdevice device) {
  static DevicePools* const pools = new DevicePools[kMaxDevices];
  return pools[device];
}

CUmemPoolProps standard_props(CUdevice device) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = device;
  return props;
}

// Precondition: pools.mutex held.
CUmemoryPool standard_pool(DevicePools& pools, CUdevice device) {
  if (pools.standard == nullptr) {
    pools.standard = new CUmemPoolHandle_st(device, standard_props(device));
    pools.all.push_back(pools.standard);
    pools.current = pools.standard;
  }
  return pools.standard;
}

bool is_pool(CUmemoryPool pool) { return pool != nullptr && pool->magic == CUmemPoolHandle_st::kMagic; }

// Gives free chunks back until no more than `keep` bytes are reserved. Precondition: pool->mutex held.
bool trim(CUmemoryPool pool, uint64_t keep) {
  if (pool->reserved_bytes <= keep) return false;
  bool any = false;
  for (const BlockHeap::Block& chunk : pool->heap.free_blocks()) {
    if (pool->reserved_bytes <= keep) break;
    pool->heap.remove_block(chunk.base);
    arena_release(chunk.base, chunk.size);
    give_device_memory(pool->device, chunk.size);
    pool->reserved_bytes -= chunk.size;
    any = true;
  }
  return any;
}

CUresult allocate(CUmemoryPool pool, uint64_t bytes, CUdeviceptr* result) {
  const uint64_t backing = round_up(bytes, kUnit);
  uint64_t address;
  {
    std::unique_lock lock(pool->mutex);
    address = pool->heap.allocate(backing);
    if (address == 0) {
      uint64_t chunk = round_up(backing, kChunk);
      if (pool->props.maxSize != 0 && pool->reserved_bytes + chunk > round_up(pool->props.maxSize, kChunk)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      // Taking memory may trim pools, this one included.
      lock.unlock();
      if (!take_device_memory(pool->device, chunk)) {
        chunk = round_up(backing, kGranule);  // the last of the device, without anything to spare
        if (!take_device_memory(pool->device, chunk)) return CUDA_ERROR_OUT_OF_MEMORY;
      }
      const uint64_t base = arena_allocate(chunk);
      if (base == 0) {
        give_device_memory(pool->device, chunk);
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      lock.lock();
      pool->heap.add_block({base, chunk});
      pool->reserved_bytes += chunk;
      pool->reserved_high_bytes = std::max(pool->reserved_high_bytes, pool->reserved_bytes);
      address = pool->heap.allocate(backing);
    }
    pool->used_bytes += backing;
    pool->used_high_bytes = std::max(pool->used_high_bytes, pool->used_bytes);
  }
  Allocation allocation;
  allocation.base = address;
  allocation.size = bytes;
  allocation.backing = backing;
  allocation.kind = Allocation::Kind::kPool;
  allocation.device = pool->device;
  allocation.pool = pool;
  remember(allocation);
  *result = address;
  return CUDA_SUCCESS;
}

CUresult allocate_async(CUdeviceptr* result, size_t bytes, CUmemoryPool pool, CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = find_stream(handle, &stream)) return error;
  if (result == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (pool != nullptr && !is_pool(pool)) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > (1ull << 44)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUdevice device = pool != nullptr ? pool->device : stream->context->device;
  if (stream->capturing) {
    CUDA_MEM_ALLOC_NODE_PARAMS_v2 params{};
    params.poolProps = standard_props(device);
    params.bytesize = bytes;
    auto range = std::make_shared<const GraphRange>(bytes);
    params.dptr = range->base;
    if (params.dptr == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *result = params.dptr;
    return capture_action(stream, AllocateMemory{params, device, std::move(range)});
  }
  if (CUresult error = refuse_legacy_during_capture(stream)) return error;
  if (pool == nullptr) {
    DevicePools& pools = pools_of(device);
    std::lock_guard lock(pools.mutex);
    standard_pool(pools, device);
    pool = pools.current;
  }
  return allocate(pool, bytes, result);
}

CUresult get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  std::lock_guard lock(pool->mutex);
  auto* number = static_cast<cuuint64_t*>(value);
  auto* flag = static_cast<int*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      *flag = pool->reuse_follow_events;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      *flag = pool->reuse_opportunistic;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *flag = pool->reuse_internal;
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *number = pool->release_threshold_bytes;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *number = pool->reserved_bytes;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *number = pool->reserved_high_bytes;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *number = pool->used_bytes;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *number = pool->used_high_bytes;
      break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
      *flag = pool->props.allocType;
      break;
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
      *flag = pool->props.handleTypes;
      break;
    case CU_MEMPOOL_ATTR_LOCATION_ID:
      *flag = pool->device;
      break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
      *flag = CU_MEM_LOCATION_TYPE_DEVICE;
      break;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
      *number = pool->props.maxSize;
      break;
    case CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED:
      *flag = 0;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, const void* value) {
  std::lock_guard lock(pool->mutex);
  const auto* number = static_cast<const cuuint64_t*>(value);
  const auto* flag = static_cast<const int*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      pool->reuse_follow_events = *flag;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      pool->reuse_opportunistic = *flag;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool->reuse_internal = *flag;
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->release_threshold_bytes = *number;
      break;
    // The high marks can only be set back.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (*number != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->reserved_high_bytes = pool->reserved_bytes;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*number != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->used_high_bytes = pool->used_bytes;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace

void release_to_pool(const Allocation& allocation) {
  CUmemoryPool pool = allocation.pool;
  {
    std::lock_guard lock(pool->mutex);
    pool->heap.release(allocation.base, allocation.backing);
    pool->used_bytes -= allocation.backing;
    // A pool that was destroyed with allocations in it ends with the last of them.
    if (pool->magic != CUmemPoolHandle_st::kMagic) trim(pool, 0);
  }
  pools_of(allocation.device).freed = true;
}

bool trim_unused_pool_memory(CUdevice device) {
  DevicePools& pools = pools_of(device);
  std::lock_guard lock(pools.mutex);
  bool any = false;
  for (CUmemoryPool pool : pools.all) {
    std::lock_guard pool_lock(pool->mutex);
    any = trim(pool, 0) || any;
  }
  return any;
}

void release_idle_pool_memory(CUdevice device) {
  DevicePools& pools = pools_of(device);
  if (!pools.freed.load(std::memory_order_relaxed)) return;
  pools.freed = false;
  std::lock_guard lock(pools.mutex);
  for (CUmemoryPool pool : pools.all) {
    std::lock_guard pool_lock(pool->mutex);
    trim(pool, pool->release_threshold_bytes);
  }
}

void release_pools(CUdevice device) {
  const auto of_pools = [&](const Allocation& allocation) {
    return allocation.device == device && allocation.kind == Allocation::Kind::kPool;
  };
  for (const Allocation& allocation : forget_if(of_pools)) release_allocation(allocation);
  trim_unused_pool_memory(device);
}

}  // namespace sim

SIM_API(cuMemAllocAsync)(CUdeviceptr* result, size_t bytes, CUstream stream) {
  return sim::allocate_async(result, bytes, nullptr, stream);
}

SIM_API(cuMemAllocFromPoolAsync)(CUdeviceptr* result, size_t bytes, CUmemoryPool pool, CUstream stream) {
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::allocate_async(result, bytes, pool, stream);
}

SIM_API(cuMemFreeAsync)(CUdeviceptr address, CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (address == 0) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capturing) {
    if (!sim::is_graph_address(address)) return CUDA_ERROR_INVALID_VALUE;
  } else {
    const auto allocation = sim::allocation_at(address);
    if (!allocation || allocation->on_host() || allocation->kind == sim::Allocation::Kind::kMapped) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return sim::perform(stream, sim::FreeMemory{address});
}

SIM_API(cuMemPoolCreate)(CUmemoryPool* result, const CUmemPoolProps* props) {
  if (CUresult error = sim::ready()) return error;
  if (result == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (!sim::valid_device(props->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  auto* pool = new CUmemPoolHandle_st(props->location.id, *props);
  sim::DevicePools& pools = sim::pools_of(pool->device);
  std::lock_guard lock(pools.mutex);
  pools.all.push_back(pool);
  *result = pool;
  return CUDA_SUCCESS;
}

SIM_API(cuMemPoolDestroy)(CUmemoryPool pool) {
  if (CUresult error = sim::ready()) return error;
  if (!sim::is_pool(pool)) return CUDA_ERROR_INVALID_VALUE;
  sim::DevicePools& pools = sim::pools_of(pool->device);
  std::lock_guard lock(pools.mutex);
  if (pool == pools.standard) return CUDA_ERROR_INVALID_VALUE;
  if (pool == pools.current) pools.current = pools.standard;
  std::erase(pools.all, pool);
  // The object stays: live allocations refer to it, and their memory is the device's again when they are
  // freed.
  std::lock_guard pool_lock(pool->mutex);
  pool->magic = 0;
  sim::trim(pool, 0);
  return CUDA_SUCCESS;
}

SIM_API(cuMemPoolTrimTo)(CUmemoryPool pool, size_t keep) {
  if (!sim::is_pool(pool)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(pool->mutex);
  sim::trim(pool, keep);
  return CUDA_SUCCESS;
}

SIM_API(cuMemPoolGetAttribute)(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  if (!sim::is_pool(pool) || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::get_attribute(pool, attribute, value);
}

SIM_API(cuMemPoolSetAttribute)(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  if (!sim::is_pool(pool) || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::set_attribute(pool, attribute, value);
}

SIM_API(cuMemPoolSetAccess)(CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) {
  if (!sim::is_pool(pool) || (access == nullptr && count != 0)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(pool->mutex);
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.id != pool->device) pool->peer_access = access[i].flags;
  }
  return CUDA_SUCCESS;
}

SIM_API(cuMemPoolGetAccess)(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  if (!sim::is_pool(pool) || flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(pool->mutex);
  *flags = location->id == pool->device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : pool->peer_access;
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetDefaultMemPool)(CUmemoryPool* pool, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  sim::DevicePools& pools = sim::pools_of(device);
  std::lock_guard lock(pools.mutex);
  *pool = sim::standard_pool(pools, device);
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetMemPool)(CUmemoryPool* pool, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  sim::DevicePools& pools = sim::pools_of(device);
  std::lock_guard lock(pools.mutex);
  sim::standard_pool(pools, device);
  *pool = pools.current;
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceSetMemPool)(CUdevice device, CUmemoryPool pool) {
  if (CUresult error = sim::check_device(device)) return error;
  if (!sim::is_pool(pool) || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
  sim::DevicePools& pools = sim::pools_of(device);
  std::lock_guard lock(pools.mutex);
  sim::standard_pool(pools, device);
  pools.current = pool;
  return CUDA_SUCCESS;
}

SIM_API(cuMemGetDefaultMemPool)(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return sim_cuDeviceGetDefaultMemPool(pool, location->id);
}
SIM_API(cuMemGetMemPool)(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return sim_cuDeviceGetMemPool(pool, location->id);
}
SIM_API(cuMemSetMemPool)(CUmemLocation* location, CUmemAllocationType, CUmemoryPool pool) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return sim_cuDeviceSetMemPool(location->id, pool);
}
