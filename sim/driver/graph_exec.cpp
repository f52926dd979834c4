// SPDX-License-Identifier: Apache-2.0
//
// Instantiated graphs: making, updating and launching them.
#include <algorithm>
#include <cstring>

#include "sim/driver/capture.h"
#include "sim/driver/graph.h"
#include "sim/driver/graph_memory.h"
#include "sim/driver/launch.h"

namespace sim {
namespace {

std::atomic<unsigned> next_exec_id{1};

bool is_exec(CUgraphExec exec) { return exec != nullptr && exec->magic == CUgraphExec_st::kMagic; }

void index_steps(CUgraphExec exec) {
  exec->step_of.clear();
  for (size_t i = 0; i < exec->plan.steps.size(); ++i) exec->step_of[exec->plan.steps[i].source] = i;
}

CUresult instantiate(CUgraphExec* result, CUgraph graph, cuuint64_t flags) {
  CUctx_st* context;
  if (CUresult error = current_context(&context)) return error;
  if (result == nullptr || !is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  auto exec = std::make_unique<CUgraphExec_st>();
  if (!make_plan(graph, &exec->plan)) return CUDA_ERROR_INVALID_VALUE;
  if (has_memory_nodes(graph)) {
    if (graph->is_instantiated->exchange(true)) return CUDA_ERROR_INVALID_VALUE;
    exec->is_instantiated = graph->is_instantiated;
  }
  exec->id = next_exec_id++;
  exec->flags = flags;
  exec->context = context;
  index_steps(exec.get());
  *result = exec.release();
  return CUDA_SUCCESS;
}

// The graph that a plan would come from, for a launch that is captured: updates of the plan are in it.
std::shared_ptr<CUgraph_st> graph_of(const GraphPlan& plan) {
  auto graph = std::make_shared<CUgraph_st>();
  std::vector<CUgraphNode> nodes;
  for (const GraphStep& step : plan.steps) {
    std::vector<CUgraphNode> dependencies;
    for (const int dependency : step.after) dependencies.push_back(nodes[dependency]);
    const Action action = step.enabled ? step.action : Action(Nothing{});
    nodes.push_back(
        add_node(graph.get(), node_type(action), action, dependencies.data(), dependencies.size()));
  }
  return graph;
}

bool same_shape(const GraphPlan& a, const GraphPlan& b) {
  return std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end(),
                    [](const GraphStep& x, const GraphStep& y) { return x.after == y.after; });
}

CUresult update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  if (!is_exec(exec) || !is_graph(graph) || info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *info = {};
  GraphPlan plan;
  if (!make_plan(graph, &plan) || !same_shape(exec->plan, plan)) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  std::lock_guard lock(exec->mutex);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (node_type(plan.steps[i].action) != node_type(exec->plan.steps[i].action)) {
      info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
      info->errorNode = plan.steps[i].source;
      return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
  }
  for (size_t i = 0; i < plan.steps.size(); ++i) exec->plan.steps[i].action = plan.steps[i].action;
  return CUDA_SUCCESS;
}

// The step that a node became, if it is of that kind.
template <typename Kind>
CUresult set_step(CUgraphExec exec, CUgraphNode node, Kind action) {
  if (!is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(exec->mutex);
  const auto step = exec->step_of.find(node);
  if (step == exec->step_of.end()) return CUDA_ERROR_INVALID_VALUE;
  Action& current = exec->plan.steps[step->second].action;
  if (!std::holds_alternative<Kind>(current)) return CUDA_ERROR_INVALID_VALUE;
  current = std::move(action);
  return CUDA_SUCCESS;
}

CUresult set_kernel_step(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v3& params) {
  if (!is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
  RunKernel kernel;
  if (CUresult error = prepare_kernel(params, exec->context, false, &kernel)) return error;
  return set_step(exec, node, kernel);
}

}  // namespace
}  // namespace sim

SIM_API(cuGraphUpload)(CUgraphExec exec, CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (!sim::is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(exec->mutex);
  return sim::reserve_graph_memory(exec->plan);
}

SIM_API(cuGraphInstantiateWithFlags)(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return sim::instantiate(exec, graph, flags);
}

SIM_API(cuGraphInstantiateWithParams)
(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = sim::instantiate(exec, graph, params->flags);
  if (result == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {
    result = sim_cuGraphUpload(*exec, params->hUploadStream);
  }
  params->hErrNode_out = nullptr;
  params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

SIM_API(cuGraphInstantiate)
(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes > 0) log[0] = '\0';
  return sim::instantiate(exec, graph, 0);
}
SIM_API(cuGraphInstantiate_v2)
(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  return sim_cuGraphInstantiate(exec, graph, error_node, log, log_bytes);
}

SIM_API(cuGraphExecDestroy)(CUgraphExec exec) {
  if (!sim::is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
  exec->magic = 0;
  if (exec->is_instantiated != nullptr) *exec->is_instantiated = false;
  delete exec;
  return CUDA_SUCCESS;
}

SIM_API(cuGraphExecGetFlags)(CUgraphExec exec, cuuint64_t* flags) {
  if (!sim::is_exec(exec) || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

SIM_API(cuGraphExecGetId)(CUgraphExec exec, unsigned* id) {
  if (!sim::is_exec(exec) || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = exec->id;
  return CUDA_SUCCESS;
}

SIM_API(cuGraphLaunch)(CUgraphExec exec, CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (!sim::is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = sim::refuse_legacy_during_capture(stream)) return error;
  std::lock_guard lock(exec->mutex);
  if (stream->capturing) return sim::capture_action(stream, sim::RunGraph{sim::graph_of(exec->plan)});
  const bool free_first = (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  if (CUresult error = sim::take_graph_memory(exec->plan, free_first)) return error;
  sim::enqueue_plan(stream, exec->plan);
  return CUDA_SUCCESS;
}

SIM_API(cuGraphExecUpdate_v2)(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  return sim::update(exec, graph, info);
}
SIM_API(cuGraphExecUpdate)
(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node, CUgraphExecUpdateResult* result) {
  CUgraphExecUpdateResultInfo info{};
  const CUresult error = sim::update(exec, graph, &info);
  if (error_node != nullptr) *error_node = info.errorNode;
  if (result != nullptr) *result = info.result;
  return error;
}

SIM_API(cuGraphExecKernelNodeSetParams_v2)
(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v3 wide{};
  memcpy(&wide, params, sizeof *params);
  return sim::set_kernel_step(exec, node, wide);
}
SIM_API(cuGraphExecKernelNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v3 wide{};
  memcpy(&wide, params, sizeof *params);
  return sim::set_kernel_step(exec, node, wide);
}

SIM_API(cuGraphExecMemcpyNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params, CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::set_step(exec, node, sim::CopyMemory{*params});
}
SIM_API(cuGraphExecMemsetNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params, CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMSET_NODE_PARAMS_v2 wide{};
  memcpy(&wide, params, sizeof *params);
  return sim::set_step(exec, node, sim::SetMemory{wide});
}
SIM_API(cuGraphExecHostNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::set_step(exec, node, sim::CallHost{params->fn, params->userData});
}
SIM_API(cuGraphExecEventRecordNodeSetEvent)(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return sim::set_step(exec, node, sim::RecordEvent{event});
}
SIM_API(cuGraphExecEventWaitNodeSetEvent)(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return sim::set_step(exec, node, sim::AwaitEvent{event});
}

SIM_API(cuGraphExecNodeSetParams)(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return sim::set_kernel_step(exec, node, params->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return sim::set_step(exec, node, sim::CopyMemory{params->memcpy.copyParams});
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return sim::set_step(exec, node, sim::SetMemory{params->memset});
    case CU_GRAPH_NODE_TYPE_HOST:
      return sim::set_step(exec, node, sim::CallHost{params->host.fn, params->host.userData});
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

SIM_API(cuGraphNodeSetEnabled)(CUgraphExec exec, CUgraphNode node, unsigned enabled) {
  if (!sim::is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(exec->mutex);
  const auto step = exec->step_of.find(node);
  if (step == exec->step_of.end()) return CUDA_ERROR_INVALID_VALUE;
  exec->plan.steps[step->second].enabled = enabled != 0;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphNodeGetEnabled)(CUgraphExec exec, CUgraphNode node, unsigned* enabled) {
  if (!sim::is_exec(exec) || enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(exec->mutex);
  const auto step = exec->step_of.find(node);
  if (step == exec->step_of.end()) return CUDA_ERROR_INVALID_VALUE;
  *enabled = exec->plan.steps[step->second].enabled;
  return CUDA_SUCCESS;
}
