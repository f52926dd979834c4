// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "sim/driver/arena.h"
#include "sim/driver/capture.h"
#include "sim/driver/graph_memory.h"
#include "sim/driver/ipc.h"
#include "sim/driver/pools.h"
#include "sim/driver/vmm.h"

namespace sim {
namespace {

constexpr uint64_t kSmallLimit = 1ull << 20;
constexpr uint64_t kSmallUnit = 512;

struct AddressMap {
  std::mutex mutex;
  std::map<uint64_t, Allocation> allocations;
  uint64_t next_id = 1;

  auto containing(uint64_t address) {
    auto next = allocations.upper_bound(address);
    if (next == allocations.begin()) return allocations.end();
    --next;
    return address - next->first < next->second.size ? next : allocations.end();
  }

  // Calls visit for each allocation in the range; false if there is a gap.
  template <typename Visit>
  bool each_in(uint64_t address, uint64_t bytes, Visit visit) {
    const uint64_t end = address + bytes;
    while (address < end) {
      const auto found = containing(address);
      if (found == allocations.end()) return false;
      visit(found->second);
      address = found->second.base + found->second.size;
    }
    return true;
  }
};

AddressMap& address_map() {
  static AddressMap& instance = *new AddressMap;
  return instance;
}

}  // namespace

void remember(Allocation allocation) {
  AddressMap& map = address_map();
  std::lock_guard lock(map.mutex);
  allocation.id = map.next_id++;
  map.allocations.insert_or_assign(allocation.base, allocation);
}

std::optional<Allocation> find_allocation(uint64_t address) {
  AddressMap& map = address_map();
  std::lock_guard lock(map.mutex);
  const auto found = map.containing(address);
  if (found == map.allocations.end()) return std::nullopt;
  return found->second;
}

std::optional<Allocation> allocation_at(uint64_t base) {
  AddressMap& map = address_map();
  std::lock_guard lock(map.mutex);
  const auto found = map.allocations.find(base);
  if (found == map.allocations.end()) return std::nullopt;
  return found->second;
}

std::optional<Allocation> forget(uint64_t base) {
  AddressMap& map = address_map();
  std::lock_guard lock(map.mutex);
  const auto found = map.allocations.find(base);
  if (found == map.allocations.end()) return std::nullopt;
  const Allocation allocation = found->second;
  map.allocations.erase(found);
  return allocation;
}

std::vector<Allocation> forget_if(const std::function<bool(const Allocation&)>& which) {
  AddressMap& map = address_map();
  std::vector<Allocation> result;
  std::lock_guard lock(map.mutex);
  for (auto entry = map.allocations.begin(); entry != map.allocations.end();) {
    if (which(entry->second)) {
      result.push_back(entry->second);
      entry = map.allocations.erase(entry);
    } else {
      ++entry;
    }
  }
  return result;
}

bool set_mapped_access(uint64_t address, uint64_t bytes, bool accessible) {
  AddressMap& map = address_map();
  std::lock_guard lock(map.mutex);
  bool all_mapped = true;
  const bool covered = map.each_in(address, bytes, [&](const Allocation& allocation) {
    all_mapped = all_mapped && allocation.kind == Allocation::Kind::kMapped;
  });
  if (!covered || !all_mapped) return false;
  map.each_in(address, bytes, [&](Allocation& allocation) { allocation.accessible = accessible; });
  return true;
}

std::vector<Allocation> mapped_in(uint64_t address, uint64_t bytes) {
  AddressMap& map = address_map();
  std::vector<Allocation> result;
  std::lock_guard lock(map.mutex);
  for (auto entry = map.allocations.lower_bound(address);
       entry != map.allocations.end() && entry->first < address + bytes; ++entry) {
    if (entry->second.kind == Allocation::Kind::kMapped) result.push_back(entry->second);
  }
  return result;
}

bool is_known_memory(uint64_t address, uint64_t bytes) {
  AddressMap& map = address_map();
  std::lock_guard lock(map.mutex);
  bool accessible = true;
  const bool covered = map.each_in(address, bytes, [&](const Allocation& allocation) {
    accessible = accessible && allocation.accessible;
  });
  return covered && accessible;
}

bool may_touch(uint64_t address, uint64_t bytes) {
  if (bytes == 0 || is_known_memory(address, bytes)) return true;
  return address != 0 && !in_arena(address) && !in_reserved_range(address);
}

bool take_device_memory(CUdevice device, uint64_t bytes, Node::Memory kind) {
  Node& node = Node::get();
  if (node.take_memory(node_device(device), bytes, kind)) return true;
  return trim_unused_pool_memory(device) && node.take_memory(node_device(device), bytes, kind);
}

void give_device_memory(CUdevice device, uint64_t bytes, Node::Memory kind) {
  Node::get().give_memory(node_device(device), bytes, kind);
}

namespace {

// Memory of a multiple of kGranule, taken from the device. 0: it is full.
uint64_t allocate_granules(CUdevice device, uint64_t bytes, Node::Memory kind = Node::Memory::kListed) {
  if (!take_device_memory(device, bytes, kind)) return 0;
  const uint64_t address = arena_allocate(bytes);
  if (address == 0) give_device_memory(device, bytes, kind);
  return address;
}

void release_granules(CUdevice device, uint64_t address, uint64_t bytes,
                      Node::Memory kind = Node::Memory::kListed) {
  arena_release(address, bytes);
  give_device_memory(device, bytes, kind);
}

Node::Memory node_memory(Allocation::Kind kind) {
  return kind == Allocation::Kind::kManaged ? Node::Memory::kManaged : Node::Memory::kListed;
}

uint64_t allocate_small(CUctx_st* context, uint64_t bytes) {
  std::lock_guard lock(context->heap_mutex);
  if (const uint64_t address = context->small_heap.allocate(bytes)) return address;
  const uint64_t block = allocate_granules(context->device, kGranule);
  if (block == 0) return 0;
  context->small_heap.add_block({block, kGranule});
  return context->small_heap.allocate(bytes);
}

}  // namespace

CUresult allocate_device_memory(CUctx_st* context, uint64_t bytes, Allocation::Kind kind,
                                CUdeviceptr* result) {
  if (bytes > (1ull << 44)) return CUDA_ERROR_OUT_OF_MEMORY;
  context = context->owner;
  Allocation allocation;
  allocation.size = bytes;
  allocation.kind = kind;
  allocation.device = context->device;
  allocation.context = context;
  allocation.small = bytes <= kSmallLimit && kind != Allocation::Kind::kManaged;
  allocation.backing = round_up(bytes, allocation.small ? kSmallUnit : kGranule);
  allocation.base = allocation.small
                        ? allocate_small(context, allocation.backing)
                        : allocate_granules(context->device, allocation.backing, node_memory(kind));
  if (allocation.base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  remember(allocation);
  *result = allocation.base;
  return CUDA_SUCCESS;
}

CUresult reserve_module_memory(CUctx_st* context, uint64_t bytes, CUdeviceptr* result) {
  context = context->owner;
  Allocation allocation;
  allocation.size = bytes;
  allocation.backing = round_up(bytes, kGranule);
  allocation.kind = Allocation::Kind::kModule;
  allocation.device = context->device;
  allocation.context = context;
  allocation.charged = false;
  allocation.base = arena_allocate(allocation.backing);
  if (allocation.base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  remember(allocation);
  *result = allocation.base;
  return CUDA_SUCCESS;
}

void release_allocation(const Allocation& allocation) {
  switch (allocation.kind) {
    case Allocation::Kind::kDevice:
    case Allocation::Kind::kManaged:
    case Allocation::Kind::kModule:
      if (!allocation.charged) {
        arena_release(allocation.base, allocation.backing);
      } else if (!allocation.small) {
        release_granules(allocation.device, allocation.base, allocation.backing,
                         node_memory(allocation.kind));
      } else {
        CUctx_st* context = allocation.context;
        std::lock_guard lock(context->heap_mutex);
        if (context->small_heap.release(allocation.base, allocation.backing)) {
          const uint64_t block = context->small_heap.block_of(allocation.base).base;
          context->small_heap.remove_block(block);
          release_granules(allocation.device, block, kGranule);
        }
      }
      break;
    case Allocation::Kind::kPool:
      release_to_pool(allocation);
      break;
    case Allocation::Kind::kGraph:
      release_graph_memory(allocation);
      break;
    case Allocation::Kind::kImported:
      close_imported_memory(allocation);
      break;
    case Allocation::Kind::kHost:
      munmap(reinterpret_cast<void*>(allocation.base), allocation.backing);
      break;
    case Allocation::Kind::kMapped:
    case Allocation::Kind::kExternal:
    case Allocation::Kind::kRegistered:
      break;
  }
}

void release_memory_of(CUctx_st* context) {
  const auto owned = [&](const Allocation& allocation) { return allocation.context == context; };
  for (const Allocation& allocation : forget_if(owned)) release_allocation(allocation);
}

}  // namespace sim

using sim::Allocation;

SIM_API(cuMemAlloc_v2)(CUdeviceptr* dptr, size_t bytesize) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (dptr == nullptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = sim::refuse_during_capture()) return error;
  return sim::allocate_device_memory(context, bytesize, Allocation::Kind::kDevice, dptr);
}

SIM_API(cuMemAllocPitch_v2)
(CUdeviceptr* dptr, size_t* pitch, size_t width_bytes, size_t height, unsigned element_bytes) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  const bool element_valid = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  if (dptr == nullptr || pitch == nullptr || width_bytes == 0 || height == 0 || !element_valid) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult error = sim::refuse_during_capture()) return error;
  const size_t row_bytes = sim::round_up(width_bytes, 512);
  size_t bytes;
  if (__builtin_mul_overflow(row_bytes, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *pitch = row_bytes;
  return sim::allocate_device_memory(context, bytes, Allocation::Kind::kDevice, dptr);
}

SIM_API(cuMemAllocManaged)(CUdeviceptr* dptr, size_t bytesize, unsigned flags) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  const unsigned attach = flags & (CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST);
  if (dptr == nullptr || bytesize == 0 || attach == 0 || flags != attach) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = sim::refuse_during_capture()) return error;
  return sim::allocate_device_memory(context, bytesize, Allocation::Kind::kManaged, dptr);
}

SIM_API(cuMemFree_v2)(CUdeviceptr dptr) {
  if (CUresult error = sim::ready()) return error;
  if (dptr == 0) return CUDA_SUCCESS;
  if (CUresult error = sim::refuse_during_capture()) return error;
  const auto found = sim::allocation_at(dptr);
  if (!found || found->on_host() || found->kind == Allocation::Kind::kMapped ||
      found->kind == Allocation::Kind::kModule || found->kind == Allocation::Kind::kImported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Two threads may free the same pointer; the one that takes it out of the map is the one that releases it.
  const auto allocation = sim::forget(dptr);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  sim::release_allocation(*allocation);
  return CUDA_SUCCESS;
}

SIM_API(cuMemGetInfo_v2)(size_t* free_bytes, size_t* total_bytes) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  const sim::MemoryInfo info = sim::Node::get().memory(sim::node_device(context->device));
  if (free_bytes != nullptr) *free_bytes = info.total_bytes - std::min(info.total_bytes, info.used_bytes);
  if (total_bytes != nullptr) *total_bytes = info.total_bytes;
  return CUDA_SUCCESS;
}

SIM_API(cuMemGetAddressRange_v2)(CUdeviceptr* base, size_t* size, CUdeviceptr dptr) {
  if (CUresult error = sim::ready()) return error;
  const auto allocation = sim::find_allocation(dptr);
  if (!allocation) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = allocation->base;
  if (size != nullptr) *size = allocation->size;
  return CUDA_SUCCESS;
}
