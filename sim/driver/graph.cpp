// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/graph.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "sim/driver/launch.h"
#include "sim/driver/module.h"
#include "sim/driver/pools.h"

struct CUuserObject_st {
  std::atomic<unsigned> references;
  CUhostFn destroy;
  void* data;
};

namespace sim {
namespace {

std::atomic<unsigned> next_graph_id{1};

void release_user_object(CUuserObject object, unsigned count) {
  if (object->references.fetch_sub(count) != count) return;
  object->destroy(object->data);
  delete object;
}

void connect(CUgraphNode from, CUgraphNode to) {
  if (std::find(to->dependencies.begin(), to->dependencies.end(), from) != to->dependencies.end()) return;
  to->dependencies.push_back(from);
  from->dependents.push_back(to);
}

void disconnect(CUgraphNode from, CUgraphNode to) {
  std::erase(to->dependencies, from);
  std::erase(from->dependents, to);
}

// The protocol of all queries that list something: no array asks for the count; room beyond it is set to
// null.
template <typename Handle>
CUresult list(const std::vector<Handle>& items, Handle* out, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out != nullptr) {
    for (size_t i = 0; i < *count; ++i) out[i] = i < items.size() ? items[i] : nullptr;
    *count = std::min(*count, items.size());
  } else {
    *count = items.size();
  }
  return CUDA_SUCCESS;
}

// Nodes in creation order among those that are ready.
bool sort_nodes(CUgraph graph, std::vector<CUgraphNode>* order) {
  std::map<CUgraphNode, size_t> missing;
  std::deque<CUgraphNode> ready_nodes;
  for (const auto& node : graph->nodes) {
    missing[node.get()] = node->dependencies.size();
    if (node->dependencies.empty()) ready_nodes.push_back(node.get());
  }
  while (!ready_nodes.empty()) {
    CUgraphNode node = ready_nodes.front();
    ready_nodes.pop_front();
    order->push_back(node);
    for (CUgraphNode dependent : node->dependents) {
      if (--missing[dependent] == 0) ready_nodes.push_back(dependent);
    }
  }
  return order->size() == graph->nodes.size();
}

using Steps = std::vector<int>;

void append(Steps& into, const Steps& steps) {
  for (const int step : steps) {
    if (std::find(into.begin(), into.end(), step) == into.end()) into.push_back(step);
  }
}

// Adds a graph's nodes to the plan; roots wait for `before`. `ends` becomes what has to be waited for
// afterwards.
bool expand(CUgraph graph, const Steps& before, GraphPlan* plan, Steps* ends) {
  std::vector<CUgraphNode> order;
  if (!sort_nodes(graph, &order)) return false;
  std::map<CUgraphNode, Steps> done;
  for (CUgraphNode node : order) {
    Steps after;
    for (CUgraphNode dependency : node->dependencies) append(after, done[dependency]);
    if (node->dependencies.empty()) after = before;
    if (const auto* child = std::get_if<RunGraph>(&node->action)) {
      if (!expand(child->graph.get(), after, plan, &done[node])) return false;
    } else {
      plan->steps.push_back({node, node->action, after, 0, true});
      done[node] = {static_cast<int>(plan->steps.size()) - 1};
    }
  }
  ends->clear();
  for (CUgraphNode node : order) {
    if (node->dependents.empty()) append(*ends, done[node]);
  }
  if (order.empty()) *ends = before;
  return true;
}

// A step continues the branch of the first step that it waits for, if nobody else does.
void choose_branches(GraphPlan* plan) {
  std::vector<bool> continued(plan->steps.size(), false);
  int branches = 0;
  for (GraphStep& step : plan->steps) {
    int branch = -1;
    for (const int dependency : step.after) {
      plan->steps[dependency].is_end = false;
      if (branch < 0 && !continued[dependency]) {
        continued[dependency] = true;
        branch = plan->steps[dependency].branch;
      }
    }
    step.branch = branch >= 0 ? branch : branches++;
  }
}

}  // namespace

bool is_graph(CUgraph graph) { return graph != nullptr && graph->magic == CUgraph_st::kMagic; }

CUgraphNodeType node_type(const Action& action) {
  if (std::holds_alternative<RunKernel>(action)) return CU_GRAPH_NODE_TYPE_KERNEL;
  if (std::holds_alternative<CopyMemory>(action)) return CU_GRAPH_NODE_TYPE_MEMCPY;
  if (std::holds_alternative<SetMemory>(action)) return CU_GRAPH_NODE_TYPE_MEMSET;
  if (std::holds_alternative<CallHost>(action)) return CU_GRAPH_NODE_TYPE_HOST;
  if (std::holds_alternative<RecordEvent>(action)) return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  if (std::holds_alternative<AwaitEvent>(action)) return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  if (std::holds_alternative<AllocateMemory>(action)) return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  if (std::holds_alternative<FreeMemory>(action)) return CU_GRAPH_NODE_TYPE_MEM_FREE;
  if (std::holds_alternative<RunGraph>(action)) return CU_GRAPH_NODE_TYPE_GRAPH;
  if (std::holds_alternative<WriteValue>(action) || std::holds_alternative<WaitValue>(action)) {
    return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  }
  return CU_GRAPH_NODE_TYPE_EMPTY;
}

CUgraphNode add_node(CUgraph graph, CUgraphNodeType type, Action action, const CUgraphNode* dependencies,
                     size_t dependency_count) {
  auto owned = std::make_unique<CUgraphNode_st>();
  CUgraphNode node = owned.get();
  node->graph = graph;
  node->type = type;
  node->local_id = graph->next_node_id++;
  node->action = std::move(action);
  node->context = current_context_or_null();
  for (size_t i = 0; i < dependency_count; ++i) connect(dependencies[i], node);
  graph->nodes.push_back(std::move(owned));
  return node;
}

void keep_arguments(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v3& params) {
  node->arguments.clear();
  node->argument_pointers.clear();
  if (params.kernelParams == nullptr || params.func == nullptr || !params.func->parameters_known) return;
  for (size_t i = 0; i < params.func->parameters.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(params.kernelParams[i]);
    node->arguments.emplace_back(bytes, bytes + params.func->parameters[i].size);
  }
  for (auto& argument : node->arguments) node->argument_pointers.push_back(argument.data());
}

CUgraph clone_graph(CUgraph original) {
  CUgraph clone = new CUgraph_st;
  for (const auto& node : original->nodes) {
    Action action = node->action;
    if (auto* child = std::get_if<RunGraph>(&action)) child->graph.reset(clone_graph(child->graph.get()));
    CUgraphNode copy = add_node(clone, node->type, std::move(action), nullptr, 0);
    copy->context = node->context;
    copy->arguments = node->arguments;
    for (auto& argument : copy->arguments) copy->argument_pointers.push_back(argument.data());
    clone->clone_of[node.get()] = copy;
  }
  for (const auto& node : original->nodes) {
    for (CUgraphNode dependency : node->dependencies) {
      connect(clone->clone_of[dependency], clone->clone_of[node.get()]);
    }
  }
  for (const auto& [object, count] : original->user_objects) {
    object->references += count;
    clone->user_objects[object] += count;
  }
  return clone;
}

bool make_plan(CUgraph graph, GraphPlan* plan) {
  Steps ends;
  plan->steps.clear();
  if (!expand(graph, {}, plan, &ends)) return false;
  choose_branches(plan);
  return true;
}

namespace {

bool dependencies_valid(CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  if (count != 0 && dependencies == nullptr) return false;
  for (size_t i = 0; i < count; ++i) {
    if (dependencies[i] == nullptr || dependencies[i]->graph != graph) return false;
  }
  return true;
}

// What all cuGraphAdd...Node functions have in common.
CUresult add(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count, Action action,
             CUcontext context = nullptr) {
  if (CUresult error = ready()) return error;
  if (result == nullptr || !is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
  if (!dependencies_valid(graph, dependencies, count)) return CUDA_ERROR_INVALID_VALUE;
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
                   CUgraph child) {
  if (!is_graph(child)) return CUDA_ERROR_INVALID_VALUE;
  return add(result, graph, dependencies, count, RunGraph{std::shared_ptr<CUgraph_st>(clone_graph(child))});
}

CUresult add_allocation(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                        CUDA_MEM_ALLOC_NODE_PARAMS_v2* params) {
  if (params == nullptr || params->bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  if (params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (!valid_device(params->poolProps.location.id)) return CUDA_ERROR_INVALID_DEVICE;
  params->dptr = reserve_graph_address(params->bytesize);
  if (params->dptr == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  return add(result, graph, dependencies, count, AllocateMemory{*params, params->poolProps.location.id});
}

// Action of a node's parameters as cuGraphAddNode and its kin pass them. Allocations and children are not
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
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      *action = FreeMemory{params.free.dptr};
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult add_any(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                 CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    return add_child(result, graph, dependencies, count, params->graph.graph);
  }
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    return add_allocation(result, graph, dependencies, count, &params->alloc);
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

CUgraph_st::CUgraph_st() : id(sim::next_graph_id++) {}

CUgraph_st::~CUgraph_st() {
  magic = 0;
  for (const auto& [object, count] : user_objects) sim::release_user_object(object, count);
}

SIM_API(cuGraphCreate)(CUgraph* graph, unsigned flags) {
  if (CUresult error = sim::ready()) return error;
  if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *graph = new CUgraph_st;
  return CUDA_SUCCESS;
}

SIM_API(cuGraphDestroy)(CUgraph graph) {
  if (!sim::is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
  delete graph;
  return CUDA_SUCCESS;
}

SIM_API(cuGraphClone)(CUgraph* clone, CUgraph original) {
  if (clone == nullptr || !sim::is_graph(original)) return CUDA_ERROR_INVALID_VALUE;
  *clone = sim::clone_graph(original);
  return CUDA_SUCCESS;
}

SIM_API(cuGraphNodeFindInClone)(CUgraphNode* result, CUgraphNode original, CUgraph clone) {
  if (result == nullptr || !sim::is_graph(clone)) return CUDA_ERROR_INVALID_VALUE;
  const auto found = clone->clone_of.find(original);
  if (found == clone->clone_of.end()) return CUDA_ERROR_INVALID_VALUE;
  *result = found->second;
  return CUDA_SUCCESS;
}

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
  return sim::add_child(result, graph, dependencies, count, child);
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
  return sim::add(result, graph, dependencies, count, sim::FreeMemory{address});
}

SIM_API(cuGraphAddNode_v2)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData*, size_t count,
 CUgraphNodeParams* params) {
  return sim::add_any(result, graph, dependencies, count, params);
}
SIM_API(cuGraphAddNode)
(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
 CUgraphNodeParams* params) {
  return sim::add_any(result, graph, dependencies, count, params);
}

SIM_API(cuGraphDestroyNode)(CUgraphNode node) {
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  while (!node->dependencies.empty()) sim::disconnect(node->dependencies.back(), node);
  while (!node->dependents.empty()) sim::disconnect(node, node->dependents.back());
  std::erase_if(node->graph->nodes, [&](const auto& owned) { return owned.get() == node; });
  return CUDA_SUCCESS;
}

SIM_API(cuGraphAddDependencies)(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  if (!sim::is_graph(graph) || !sim::dependencies_valid(graph, from, count) ||
      !sim::dependencies_valid(graph, to, count)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) sim::connect(from[i], to[i]);
  return CUDA_SUCCESS;
}
SIM_API(cuGraphAddDependencies_v2)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData*, size_t count) {
  return sim_cuGraphAddDependencies(graph, from, to, count);
}

SIM_API(cuGraphRemoveDependencies)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  if (!sim::is_graph(graph) || !sim::dependencies_valid(graph, from, count) ||
      !sim::dependencies_valid(graph, to, count)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) sim::disconnect(from[i], to[i]);
  return CUDA_SUCCESS;
}
SIM_API(cuGraphRemoveDependencies_v2)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData*, size_t count) {
  return sim_cuGraphRemoveDependencies(graph, from, to, count);
}

SIM_API(cuGraphGetNodes)(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  if (!sim::is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> all;
  for (const auto& node : graph->nodes) all.push_back(node.get());
  return sim::list(all, nodes, count);
}

SIM_API(cuGraphGetRootNodes)(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  if (!sim::is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> roots;
  for (const auto& node : graph->nodes) {
    if (node->dependencies.empty()) roots.push_back(node.get());
  }
  return sim::list(roots, nodes, count);
}

SIM_API(cuGraphGetEdges)(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  if (!sim::is_graph(graph) || count == nullptr || (from == nullptr) != (to == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<CUgraphNode> sources, targets;
  for (const auto& node : graph->nodes) {
    for (CUgraphNode dependency : node->dependencies) {
      sources.push_back(dependency);
      targets.push_back(node.get());
    }
  }
  size_t room = *count;
  if (CUresult error = sim::list(sources, from, &room)) return error;
  return sim::list(targets, to, count);
}
SIM_API(cuGraphGetEdges_v2)
(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count) {
  if (CUresult error = sim_cuGraphGetEdges(graph, from, to, count)) return error;
  if (edges != nullptr && from != nullptr) std::fill_n(edges, *count, CUgraphEdgeData{});
  return CUDA_SUCCESS;
}

SIM_API(cuGraphNodeGetDependencies)(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::list(node->dependencies, nodes, count);
}
SIM_API(cuGraphNodeGetDependencies_v2)
(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* edges, size_t* count) {
  if (CUresult error = sim_cuGraphNodeGetDependencies(node, nodes, count)) return error;
  if (edges != nullptr && nodes != nullptr) std::fill_n(edges, *count, CUgraphEdgeData{});
  return CUDA_SUCCESS;
}

SIM_API(cuGraphNodeGetDependentNodes)(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::list(node->dependents, nodes, count);
}
SIM_API(cuGraphNodeGetDependentNodes_v2)
(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* edges, size_t* count) {
  if (CUresult error = sim_cuGraphNodeGetDependentNodes(node, nodes, count)) return error;
  if (edges != nullptr && nodes != nullptr) std::fill_n(edges, *count, CUgraphEdgeData{});
  return CUDA_SUCCESS;
}

SIM_API(cuGraphNodeGetType)(CUgraphNode node, CUgraphNodeType* type) {
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->type;
  return CUDA_SUCCESS;
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

SIM_API(cuGraphGetId)(CUgraph graph, unsigned* id) {
  if (!sim::is_graph(graph) || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = graph->id;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphNodeGetLocalId)(CUgraphNode node, unsigned* id) {
  if (node == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = node->local_id;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphNodeGetToolsId)(CUgraphNode node, unsigned long long* id) {
  if (node == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = static_cast<unsigned long long>(node->graph->id) << 32 | node->local_id;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphNodeGetContainingGraph)(CUgraphNode node, CUgraph* graph) {
  if (node == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = node->graph;
  return CUDA_SUCCESS;
}

SIM_API(cuGraphDebugDotPrint)(CUgraph graph, const char* path, unsigned) {
  if (!sim::is_graph(graph) || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILE* file = fopen(path, "we");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  fprintf(file, "digraph graph_%u {\n", graph->id);
  for (const auto& node : graph->nodes) {
    fprintf(file, "  n%u [label=\"%u: type %d\"];\n", node->local_id, node->local_id, node->type);
    for (CUgraphNode dependency : node->dependencies) {
      fprintf(file, "  n%u -> n%u;\n", dependency->local_id, node->local_id);
    }
  }
  fprintf(file, "}\n");
  return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

SIM_API(cuUserObjectCreate)
(CUuserObject* object, void* data, CUhostFn destroy, unsigned references, unsigned flags) {
  if (object == nullptr || destroy == nullptr || references == 0 ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *object = new CUuserObject_st{references, destroy, data};
  return CUDA_SUCCESS;
}
SIM_API(cuUserObjectRetain)(CUuserObject object, unsigned count) {
  if (object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  object->references += count;
  return CUDA_SUCCESS;
}
SIM_API(cuUserObjectRelease)(CUuserObject object, unsigned count) {
  if (object == nullptr || count == 0 || count > object->references) return CUDA_ERROR_INVALID_VALUE;
  sim::release_user_object(object, count);
  return CUDA_SUCCESS;
}
SIM_API(cuGraphRetainUserObject)(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  if (!sim::is_graph(graph) || object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) object->references += count;
  graph->user_objects[object] += count;
  return CUDA_SUCCESS;
}
SIM_API(cuGraphReleaseUserObject)(CUgraph graph, CUuserObject object, unsigned count) {
  if (!sim::is_graph(graph) || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = graph->user_objects.find(object);
  if (found == graph->user_objects.end() || found->second < count) return CUDA_ERROR_INVALID_VALUE;
  found->second -= count;
  if (found->second == 0) graph->user_objects.erase(found);
  sim::release_user_object(object, count);
  return CUDA_SUCCESS;
}
