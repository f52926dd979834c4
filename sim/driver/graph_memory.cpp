// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/graph_memory.h"

#include <algorithm>

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

}  // namespace

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

uint64_t reserve_graph_address(uint64_t bytes) { return arena_allocate(graph_backing(bytes)); }

CUresult take_graph_memory(const GraphPlan& plan, CUctx_st* context, bool free_first) {
  const bool any = std::any_of(plan.steps.begin(), plan.steps.end(), [](const GraphStep& step) {
    return std::holds_alternative<AllocateMemory>(step.action);
  });
  if (!any) return CUDA_SUCCESS;
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
    wanted.push_back(allocation);
  }
  // A graph reuses inside itself what it frees, so what counts is its peak.
  GraphMemory& memory = memory_of(context->device);
  std::lock_guard lock(memory.mutex);
  uint64_t live = memory.used_bytes;
  uint64_t peak = live;
  for (const GraphStep& step : plan.steps) {
    if (const auto* node = std::get_if<AllocateMemory>(&step.action)) {
      live += graph_backing(node->params.bytesize);
      peak = std::max(peak, live);
    } else if (const auto* free = std::get_if<FreeMemory>(&step.action)) {
      for (const Allocation& allocation : wanted) {
        if (allocation.base == free->address) live -= allocation.backing;
      }
    }
  }
  if (peak > memory.reserved_bytes) {
    if (!take_device_memory(context->device, peak - memory.reserved_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    memory.reserved_bytes = peak;
    memory.reserved_high_bytes = std::max(memory.reserved_high_bytes, peak);
  }
  memory.used_high_bytes = std::max(memory.used_high_bytes, peak);
  for (const Allocation& allocation : wanted) {
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
