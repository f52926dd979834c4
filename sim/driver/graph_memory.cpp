// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/graph_memory.h"

#include <algorithm>
#include <map>
#include <set>

#include "sim/driver/arena.h"
#include "sim/driver/graph.h"

namespace sim {
namespace {

struct GraphMemory {
  std::mutex mutex;  // guards what follows
  uint64_t used_bytes = 0, used_high_bytes = 0;
  uint64_t reserved_bytes = 0, reserved_high_bytes = 0;
};

GraphMemory& memory_of(CUdevice device) {
  static GraphMemory* const memories = new GraphMemory[kMaxDevices];
  return memories[device];
}

uint64_t graph_backing(uint64_t bytes) { return round_up(bytes, kGranule); }

// The addresses that allocation nodes of any graph have.
struct GraphAddresses {
  std::mutex mutex;
  std::set<uint64_t> all;
};

GraphAddresses& graph_addresses() {
  static GraphAddresses& instance = *new GraphAddresses;
  return instance;
}

// What a launch of the plan adds to the live allocations of a device, at its highest: a graph reuses inside
// itself what it frees.
uint64_t peak_of(const GraphPlan& plan, CUdevice device) {
  std::map<uint64_t, uint64_t> backing;
  uint64_t live = 0, peak = 0;
  for (const GraphStep& step : plan.steps) {
    if (const auto* node = std::get_if<AllocateMemory>(&step.action)) {
      if (node->device != device) continue;
      live += backing[node->params.dptr] = graph_backing(node->params.bytesize);
      peak = std::max(peak, live);
    } else if (const auto* free = std::get_if<FreeMemory>(&step.action)) {
      const auto own = backing.find(free->address);
      if (own != backing.end()) live -= own->second;
    }
  }
  return peak;
}

// Precondition: memory.mutex held.
bool reserve(GraphMemory& memory, CUdevice device, uint64_t bytes) {
  if (bytes <= memory.reserved_bytes) return true;
  if (!take_device_memory(device, bytes - memory.reserved_bytes)) return false;
  memory.reserved_bytes = bytes;
  memory.reserved_high_bytes = std::max(memory.reserved_high_bytes, bytes);
  return true;
}

std::set<CUdevice> devices_of(const GraphPlan& plan) {
  std::set<CUdevice> devices;
  for (const GraphStep& step : plan.steps) {
    if (const auto* node = std::get_if<AllocateMemory>(&step.action)) devices.insert(node->device);
  }
  return devices;
}

}  // namespace

GraphRange::GraphRange(uint64_t bytes) : bytes(graph_backing(bytes)), base(arena_allocate(this->bytes)) {
  if (base == 0) return;
  GraphAddresses& addresses = graph_addresses();
  std::lock_guard lock(addresses.mutex);
  addresses.all.insert(base);
}

GraphRange::~GraphRange() {
  if (base == 0) return;
  {
    GraphAddresses& addresses = graph_addresses();
    std::lock_guard lock(addresses.mutex);
    addresses.all.erase(base);
  }
  arena_release(base, bytes);
}

bool is_graph_address(uint64_t address) {
  GraphAddresses& addresses = graph_addresses();
  std::lock_guard lock(addresses.mutex);
  return addresses.all.contains(address);
}

void release_all_graph_memory(CUdevice device) {
  const auto of_graphs = [&](const Allocation& allocation) {
    return allocation.device == device && allocation.kind == Allocation::Kind::kGraph;
  };
  forget_if(of_graphs);
  GraphMemory& memory = memory_of(device);
  std::lock_guard lock(memory.mutex);
  give_device_memory(device, memory.reserved_bytes);
  memory.reserved_bytes = 0;
  memory.used_bytes = 0;
}

CUresult reserve_graph_memory(const GraphPlan& plan) {
  for (const CUdevice device : devices_of(plan)) {
    GraphMemory& memory = memory_of(device);
    std::lock_guard lock(memory.mutex);
    if (!reserve(memory, device, memory.used_bytes + peak_of(plan, device))) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult take_graph_memory(const GraphPlan& plan, bool free_first) {
  std::vector<Allocation> wanted;
  for (const GraphStep& step : plan.steps) {
    const auto* node = std::get_if<AllocateMemory>(&step.action);
    if (node == nullptr) continue;
    if (allocation_at(node->params.dptr)) {
      if (!free_first) return CUDA_ERROR_INVALID_VALUE;
      if (const auto old = forget(node->params.dptr)) release_allocation(*old);
    }
    Allocation allocation;
    allocation.base = node->params.dptr;
    allocation.size = node->params.bytesize;
    allocation.backing = graph_backing(node->params.bytesize);
    allocation.kind = Allocation::Kind::kGraph;
    allocation.device = node->device;
    allocation.keeps = node->range;
    wanted.push_back(allocation);
  }
  if (wanted.empty()) return CUDA_SUCCESS;
  if (CUresult error = reserve_graph_memory(plan)) return error;
  for (const CUdevice device : devices_of(plan)) {
    GraphMemory& memory = memory_of(device);
    std::lock_guard lock(memory.mutex);
    memory.used_high_bytes = std::max(memory.used_high_bytes, memory.used_bytes + peak_of(plan, device));
  }
  for (const Allocation& allocation : wanted) {
    GraphMemory& memory = memory_of(allocation.device);
    std::lock_guard lock(memory.mutex);
    memory.used_bytes += allocation.backing;
    remember(allocation);
  }
  return CUDA_SUCCESS;
}

void release_graph_memory(const Allocation& allocation) {
  GraphMemory& memory = memory_of(allocation.device);
  std::lock_guard lock(memory.mutex);
  memory.used_bytes -= std::min(memory.used_bytes, allocation.backing);
}

}  // namespace sim

SIM_API(cuDeviceGraphMemTrim)(CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  sim::GraphMemory& memory = sim::memory_of(device);
  std::lock_guard lock(memory.mutex);
  const uint64_t unused = memory.reserved_bytes - std::min(memory.reserved_bytes, memory.used_bytes);
  sim::give_device_memory(device, unused);
  memory.reserved_bytes -= unused;
  return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetGraphMemAttribute)(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  if (CUresult error = sim::check_device(device)) return error;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  sim::GraphMemory& memory = sim::memory_of(device);
  std::lock_guard lock(memory.mutex);
  auto* number = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *number = std::min(memory.used_bytes, memory.reserved_bytes);
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *number = memory.used_high_bytes;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *number = memory.reserved_bytes;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *number = memory.reserved_high_bytes;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

SIM_API(cuDeviceSetGraphMemAttribute)(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  if (CUresult error = sim::check_device(device)) return error;
  if (value == nullptr || *static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
  sim::GraphMemory& memory = sim::memory_of(device);
  std::lock_guard lock(memory.mutex);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      memory.used_high_bytes = memory.used_bytes;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      memory.reserved_high_bytes = memory.reserved_bytes;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
