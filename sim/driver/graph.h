// SPDX-License-Identifier: Apache-2.0
//
// Graphs: nodes and their order, and what an instantiated graph launches. Like the driver's, graphs are not
// thread-safe; the capture that builds one has its own lock.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "sim/driver/stream.h"

struct CUgraphNode_st {
  CUgraph_st* graph;
  CUgraphNodeType type;
  unsigned local_id;
  sim::Action action;
  CUcontext context;  // as the caller gave it
  std::vector<CUgraphNode> dependencies;
  std::vector<CUgraphNode> dependents;
  // A kernel's parameters, kept where the cubin says how large they are: what GetParams hands out.
  std::vector<std::vector<unsigned char>> arguments;
  std::vector<void*> argument_pointers;
};

struct CUgraph_st {
  static constexpr uint32_t kMagic = 0x67726631;
  uint32_t magic = kMagic;
  unsigned id;
  unsigned next_node_id = 0;
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
  std::map<CUgraphNode, CUgraphNode> clone_of;  // original node -> node here
  std::map<CUuserObject, unsigned> user_objects;
  // Whether an executable graph of this one exists; shared with it, as either may go first.
  std::shared_ptr<std::atomic<bool>> is_instantiated = std::make_shared<std::atomic<bool>>(false);

  CUgraph_st();
  ~CUgraph_st();
};

namespace sim {

// One node of an instantiated graph, children expanded, in an order in which they may run one by one.
struct GraphStep {
  CUgraphNode source;
  Action action;
  std::vector<int> after;
  int branch;   // steps of one branch follow each other
  bool is_end;  // nothing in the graph waits for it
  bool enabled = true;
};

struct GraphPlan {
  std::vector<GraphStep> steps;
};

bool is_graph(CUgraph graph);
bool are_nodes_of(CUgraph graph, const CUgraphNode* nodes, size_t count);

// Precondition: dependencies are nodes of the graph.
CUgraphNode add_node(CUgraph graph, CUgraphNodeType type, Action action, const CUgraphNode* dependencies,
                     size_t dependency_count);
CUgraphNodeType node_type(const Action& action);
// Keeps a copy of a kernel's parameters, if it is known how large they are.
void keep_arguments(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v3& params);

// A graph with allocation or free nodes can be instantiated once at a time, and neither cloned nor reduced.
bool has_memory_nodes(CUgraph graph);

CUgraph clone_graph(CUgraph original);

// False: the graph has a circle.
bool make_plan(CUgraph graph, GraphPlan* plan);

}  // namespace sim

struct CUgraphExec_st {
  static constexpr uint32_t kMagic = 0x67726578;
  uint32_t magic = kMagic;
  unsigned id;
  cuuint64_t flags;
  CUctx_st* context;
  std::mutex mutex;  // guards the plan
  sim::GraphPlan plan;
  std::shared_ptr<std::atomic<bool>> is_instantiated;  // of its graph, if that has memory nodes
  std::map<CUgraphNode, size_t> step_of;               // nodes of the graph that it was made from
};
