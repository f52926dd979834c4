// SPDX-License-Identifier: Apache-2.0
//
// The nodes of a graph: adding them, and reading and changing what they do.
#include <algorithm>
#include <cstring>

#include "sim/driver/graph.h"
#include "sim/driver/graph_memory.h"
#include "sim/driver/launch.h"

namespace sim {
namespace {

// What all cuGraphAdd...Node functions have in common.
CUresult add(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count, Action action,
             CUcontext context = nullptr) {
  if (CUresult error = ready()) return error;
  if (result == nullptr || !is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
  if (!are_nodes_of(graph, dependencies, count)) return CUDA_ERROR_INVALID_VALUE;
  const CUgraphNodeType type = node_type(action);
  *result = add_node(graph, type, std::move(action), dependencies, count);
  if (context != nullptr) (*result)->context = context;
  return CUDA_SUCCESS;
}

CUresult kernel_action(const CUDA_KERNEL_NODE_PARAMS_v3& params, Action* action) {
  CUctx_st* context = params.ctx != nullptr ? params.ctx : current_context_or_null();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  RunKernel kernel;
  if (CUresult error = prepare_kernel(params, context, false, &kernel)) return error;
  *action = kernel;
  return CUDA_SUCCESS;
}

CUDA_KERNEL_NODE_PARAMS_v3 widen(const CUDA_KERNEL_NODE_PARAMS_v2& params) {
  CUDA_KERNEL_NODE_PARAMS_v3 wide{};
  static_assert(sizeof(params) <= sizeof(wide));
  memcpy(&wide, &params, sizeof params);
  return wide;
}

CUresult add_kernel(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                    const CUDA_KERNEL_NODE_PARAMS_v3& params) {
  Action action;
  if (CUresult error = kernel_action(params, &action)) return error;
  if (CUresult error = add(result, graph, dependencies, count, action, params.ctx)) return error;
  auto wide = params;
  wide.func = std::get<RunKernel>(action).params.func;
  keep_arguments(*result, wide);
  return CUDA_SUCCESS;
}

CUresult add_child(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                   CUgraph child, CUgraphChildGraphNodeOwnership ownership) {
  if (!is_graph(child)) return CUDA_ERROR_INVALID_VALUE;
  if (ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
    return add(result, graph, dependencies, count, RunGraph{std::shared_ptr<CUgraph_st>(child)});
  }
  if (has_memory_nodes(child)) return CUDA_ERROR_INVALID_VALUE;
  return add(result, graph, dependencies, count, RunGraph{std::shared_ptr<CUgraph_st>(clone_graph(child))});
}

CUresult add_allocation(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                        CUDA_MEM_ALLOC_NODE_PARAMS_v2* params) {
  if (params == nullptr || params->bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  if (params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (!valid_device(params->poolProps.location.id)) return CUDA_ERROR_INVALID_DEVICE;
  auto range = std::make_shared<const GraphRange>(params->bytesize);
  params->dptr = range->base;
  if (params->dptr == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  return add(result, graph, dependencies, count,
             AllocateMemory{*params, params->poolProps.location.id, std::move(range)});
}

// What is freed must be an allocation node's, and not freed in this graph already.
CUresult add_free(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                  CUdeviceptr address) {
  if (!is_graph(graph) || !is_graph_address(address)) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& node : graph->nodes) {
    const auto* free = std::get_if<FreeMemory>(&node->action);
    if (free != nullptr && free->address == address) return CUDA_ERROR_INVALID_VALUE;
  }
  return add(result, graph, dependencies, count, FreeMemory{address});
}

// Action of a node's parameters as cuGraphAddNode and its kin pass them. Memory nodes and children are not
// among them.
CUresult action_of(const CUgraphNodeParams& params, Action* action) {
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return kernel_action(params.kernel, action);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      *action = CopyMemory{params.memcpy.copyParams};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      *action = SetMemory{params.memset};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_HOST:
      *action = CallHost{params.host.fn, params.host.userData};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY:
      *action = Nothing{};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      *action = RecordEvent{params.eventRecord.event};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      *action = AwaitEvent{params.eventWait.event};
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult add_any(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                 CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    return add_child(result, graph, dependencies, count, params->graph.graph, params->graph.ownership);
  }
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    return add_allocation(result, graph, dependencies, count, &params->alloc);
  }
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    return add_free(result, graph, dependencies, count, params->free.dptr);
  }
  if (params->type == CU_GRAPH_NODE_TYPE_KERNEL)
    return add_kernel(result, graph, dependencies, count, params->kernel);
  Action action;
  if (CUresult error = action_of(*params, &action)) return error;
  return add(result, graph, dependencies, count, action);
}

// The action of a node if it is of that kind.
template <typename Kind>
Kind* action_as(CUgraphNode node) {
  return node == nullptr ? nullptr : std::get_if<Kind>(&node->action);
}

CUresult set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v3& params) {
  if (action_as<RunKernel>(node) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = kernel_action(params, &node->action)) return error;
  auto wide = params;
  wide.func = std::get<RunKernel>(node->action).params.func;
  keep_arguments(node, wide);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_API(cuGraphAddKernelNode_v2)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
 const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::add_kernel(result, graph, dependencies, count, sim::widen(*params));
}

SIM_API(cuGraphAddKernelNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
 const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v3 wide{};
  memcpy(&wide, params, sizeof *params);
  return sim::add_kernel(result, graph, dependencies, count, wide);
}

SIM_API(cuGraphAddMemcpyNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
 const CUDA_MEMCPY3D* params, CUcontext context) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::add(result, graph, dependencies, count, sim::CopyMemory{*params}, context);
}

SIM_API(cuGraphAddMemsetNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
 const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMSET_NODE_PARAMS_v2 wide{};
  memcpy(&wide, params, sizeof *params);
  return sim::add(result, graph, dependencies, count, sim::SetMemory{wide}, context);
}

SIM_API(cuGraphAddHostNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
 const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr || params->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::add(result, graph, dependencies, count, sim::CallHost{params->fn, params->userData});
}

SIM_API(cuGraphAddEmptyNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  return sim::add(result, graph, dependencies, count, sim::Nothing{});
}

SIM_API(cuGraphAddChildGraphNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count, CUgraph child) {
  return sim::add_child(result, graph, dependencies, count, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE);
}

SIM_API(cuGraphAddEventRecordNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count, CUevent event) {
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::add(result, graph, dependencies, count, sim::RecordEvent{event});
}

SIM_API(cuGraphAddEventWaitNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count, CUevent event) {
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::add(result, graph, dependencies, count, sim::AwaitEvent{event});
}

SIM_API(cuGraphAddMemAllocNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
 CUDA_MEM_ALLOC_NODE_PARAMS_v1* params) {
  static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v1) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2));
  return sim::add_allocation(result, graph, dependencies, count,
                             reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS_v2*>(params));
}

SIM_API(cuGraphAddMemFreeNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count, CUdeviceptr address) {
  return sim::add_free(result, graph, dependencies, count, address);
}

SIM_API(cuGraphAddNode_v2)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData*, size_t count,
 CUgraphNodeParams* params) {
  return sim::add_any(result, graph, dependencies, count, params);
}
SIM_API(cuGraphAddNode_v3)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData*, size_t count,
 CUgraphNodeParams* params) {
  return sim::add_any(result, graph, dependencies, count, params);
}
SIM_API(cuGraphAddNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
 CUgraphNodeParams* params) {
  return sim::add_any(result, graph, dependencies, count, params);
}

SIM_API(cuGraphKernelNodeGetParams_v2)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* params) {
  const auto* kernel = sim::action_as<sim::RunKernel>(node);
  if (kernel == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memcpy(params, &kernel->params, sizeof *params);
  params->kernelParams = node->argument_pointers.empty() ? nullptr : node->argument_pointers.data();
  params->extra = nullptr;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphKernelNodeGetParams)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  CUDA_KERNEL_NODE_PARAMS_v2 wide;
  if (CUresult error = sim_cuGraphKernelNodeGetParams_v2(node, &wide)) return error;
  memcpy(params, &wide, sizeof *params);
  return CUDA_SUCCESS;
}

SIM_API(cuGraphKernelNodeSetParams_v2)(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::set_kernel(node, sim::widen(*params));
}
SIM_API(cuGraphKernelNodeSetParams)(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v3 wide{};
  memcpy(&wide, params, sizeof *params);
  return sim::set_kernel(node, wide);
}

SIM_API(cuGraphKernelNodeGetAttribute)(CUgraphNode node, CUkernelNodeAttrID, CUkernelNodeAttrValue* value) {
  if (sim::action_as<sim::RunKernel>(node) == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value = {};
  return CUDA_SUCCESS;
}
SIM_API(cuGraphKernelNodeSetAttribute)
(CUgraphNode node, CUkernelNodeAttrID, const CUkernelNodeAttrValue* value) {
  if (sim::action_as<sim::RunKernel>(node) == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphKernelNodeCopyAttributes)(CUgraphNode to, CUgraphNode from) {
  const bool kernels =
      sim::action_as<sim::RunKernel>(to) != nullptr && sim::action_as<sim::RunKernel>(from) != nullptr;
  return kernels ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API(cuGraphMemcpyNodeGetParams)(CUgraphNode node, CUDA_MEMCPY3D* params) {
  const auto* copy = sim::action_as<sim::CopyMemory>(node);
  if (copy == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *params = copy->params;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphMemcpyNodeSetParams)(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  auto* copy = sim::action_as<sim::CopyMemory>(node);
  if (copy == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  copy->params = *params;
  return CUDA_SUCCESS;
}

SIM_API(cuGraphMemsetNodeGetParams)(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
  const auto* set = sim::action_as<sim::SetMemory>(node);
  if (set == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memcpy(params, &set->params, sizeof *params);
  return CUDA_SUCCESS;
}
SIM_API(cuGraphMemsetNodeSetParams)(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
  auto* set = sim::action_as<sim::SetMemory>(node);
  if (set == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memcpy(&set->params, params, sizeof *params);
  return CUDA_SUCCESS;
}

SIM_API(cuGraphHostNodeGetParams)(CUgraphNode node, CUDA_HOST_NODE_PARAMS* params) {
  const auto* call = sim::action_as<sim::CallHost>(node);
  if (call == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  params->fn = call->function;
  params->userData = call->data;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphHostNodeSetParams)(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  auto* call = sim::action_as<sim::CallHost>(node);
  if (call == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *call = {params->fn, params->userData};
  return CUDA_SUCCESS;
}

SIM_API(cuGraphEventRecordNodeGetEvent)(CUgraphNode node, CUevent* event) {
  const auto* record = sim::action_as<sim::RecordEvent>(node);
  if (record == nullptr || event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *event = record->event;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphEventRecordNodeSetEvent)(CUgraphNode node, CUevent event) {
  auto* record = sim::action_as<sim::RecordEvent>(node);
  if (record == nullptr || event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  record->event = event;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphEventWaitNodeGetEvent)(CUgraphNode node, CUevent* event) {
  const auto* await = sim::action_as<sim::AwaitEvent>(node);
  if (await == nullptr || event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *event = await->event;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphEventWaitNodeSetEvent)(CUgraphNode node, CUevent event) {
  auto* await = sim::action_as<sim::AwaitEvent>(node);
  if (await == nullptr || event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  await->event = event;
  return CUDA_SUCCESS;
}

SIM_API(cuGraphChildGraphNodeGetGraph)(CUgraphNode node, CUgraph* graph) {
  const auto* child = sim::action_as<sim::RunGraph>(node);
  if (child == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = child->graph.get();
  return CUDA_SUCCESS;
}

SIM_API(cuGraphMemAllocNodeGetParams)(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS_v1* params) {
  const auto* allocation = sim::action_as<sim::AllocateMemory>(node);
  if (allocation == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memcpy(params, &allocation->params, sizeof *params);
  return CUDA_SUCCESS;
}
SIM_API(cuGraphMemFreeNodeGetParams)(CUgraphNode node, CUdeviceptr* address) {
  const auto* free = sim::action_as<sim::FreeMemory>(node);
  if (free == nullptr || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *address = free->address;
  return CUDA_SUCCESS;
}

SIM_API(cuGraphNodeSetParams)(CUgraphNode node, CUgraphNodeParams* params) {
  if (node == nullptr || params == nullptr || params->type != node->type) return CUDA_ERROR_INVALID_VALUE;
  if (params->type == CU_GRAPH_NODE_TYPE_KERNEL) return sim::set_kernel(node, params->kernel);
  return sim::action_of(*params, &node->action);
}
SIM_API(cuGraphNodeSetParams_v2)(CUgraphNode node, CUgraphNodeParams* params) {
  return sim_cuGraphNodeSetParams(node, params);
}
