// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/graph.h"

#include <algorithm>
#include <cstdio>

#include "sim/driver/module.h"

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

bool has_memory_nodes(CUgraph graph) {
  return std::any_of(graph->nodes.begin(), graph->nodes.end(), [](const auto& node) {
    if (const auto* child = std::get_if<RunGraph>(&node->action)) return has_memory_nodes(child->graph.get());
    return std::holds_alternative<AllocateMemory>(node->action) ||
           std::holds_alternative<FreeMemory>(node->action);
  });
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

bool are_nodes_of(CUgraph graph, const CUgraphNode* nodes, size_t count) {
  if (count != 0 && nodes == nullptr) return false;
  for (size_t i = 0; i < count; ++i) {
    if (nodes[i] == nullptr || nodes[i]->graph != graph) return false;
  }
  return true;
}

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
  if (sim::has_memory_nodes(original)) return CUDA_ERROR_INVALID_VALUE;
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

SIM_API(cuGraphDestroyNode)(CUgraphNode node) {
  if (node == nullptr || sim::has_memory_nodes(node->graph)) return CUDA_ERROR_INVALID_VALUE;
  while (!node->dependencies.empty()) sim::disconnect(node->dependencies.back(), node);
  while (!node->dependents.empty()) sim::disconnect(node, node->dependents.back());
  std::erase_if(node->graph->nodes, [&](const auto& owned) { return owned.get() == node; });
  return CUDA_SUCCESS;
}

SIM_API(cuGraphAddDependencies)(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  if (!sim::is_graph(graph) || !sim::are_nodes_of(graph, from, count) ||
      !sim::are_nodes_of(graph, to, count)) {
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
  if (!sim::is_graph(graph) || !sim::are_nodes_of(graph, from, count) ||
      !sim::are_nodes_of(graph, to, count)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (sim::has_memory_nodes(graph)) return CUDA_ERROR_INVALID_VALUE;
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
