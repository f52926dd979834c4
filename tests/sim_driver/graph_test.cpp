// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>

#include "driver_fixture.h"

namespace {

void count_up(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }

}  // namespace

class Graphs : public Driver {
 protected:
  CUDA_KERNEL_NODE_PARAMS kernel(uint64_t* ns) {
    parameters_[0] = ns;
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = spin_;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = 32;
    params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = parameters_;
    return params;
  }

  CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
  }

  float launch_ms(CUgraphExec exec, CUstream stream) {
    return device_ms(stream, [&] { EXPECT_OK(cuGraphLaunch(exec, stream)); });
  }

  void* parameters_[1];
};

TEST_F(Graphs, nodes_in_a_row_take_the_sum_and_branches_the_longest) {
  CUgraph graph;
  ASSERT_OK(cuGraphCreate(&graph, 0));
  uint64_t ns = 2'000'000;
  auto params = kernel(&ns);
  CUgraphNode root, left, right, end;
  ASSERT_OK(cuGraphAddKernelNode_v2(&root, graph, nullptr, 0, &params));
  ASSERT_OK(cuGraphAddKernelNode_v2(&left, graph, &root, 1, &params));
  ASSERT_OK(cuGraphAddKernelNode_v2(&right, graph, &root, 1, &params));
  const CUgraphNode both[] = {left, right};
  ASSERT_OK(cuGraphAddKernelNode_v2(&end, graph, both, 2, &params));
  CUstream stream = make_stream();
  EXPECT_NEAR(launch_ms(instantiate(graph), stream), 6.0f, 0.3f);
}

TEST_F(Graphs, a_circle_is_refused) {
  CUgraph graph;
  CUgraphNode first, second;
  CUgraphExec exec;
  ASSERT_OK(cuGraphCreate(&graph, 0));
  ASSERT_OK(cuGraphAddEmptyNode(&first, graph, nullptr, 0));
  ASSERT_OK(cuGraphAddEmptyNode(&second, graph, &first, 1));
  ASSERT_OK(cuGraphAddDependencies(graph, &second, &first, 1));
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Graphs, host_nodes_and_child_graphs_run_in_their_order) {
  std::atomic<int> calls{0};
  CUDA_HOST_NODE_PARAMS call = {count_up, &calls};
  CUgraph child, graph;
  CUgraphNode node, first, middle;
  ASSERT_OK(cuGraphCreate(&child, 0));
  ASSERT_OK(cuGraphAddHostNode(&node, child, nullptr, 0, &call));
  ASSERT_OK(cuGraphCreate(&graph, 0));
  ASSERT_OK(cuGraphAddHostNode(&first, graph, nullptr, 0, &call));
  ASSERT_OK(cuGraphAddChildGraphNode(&middle, graph, &first, 1, child));
  ASSERT_OK(cuGraphAddHostNode(&node, graph, &middle, 1, &call));
  CUgraphExec exec = instantiate(graph);
  CUstream stream = make_stream();
  for (int i = 0; i < 10; ++i) ASSERT_OK(cuGraphLaunch(exec, stream));
  ASSERT_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(calls, 30);
}

TEST_F(Graphs, an_update_changes_durations_but_not_the_shape) {
  CUgraph graph, other;
  CUgraphNode node, more;
  uint64_t ns = 2'000'000;
  auto params = kernel(&ns);
  ASSERT_OK(cuGraphCreate(&graph, 0));
  ASSERT_OK(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params));
  CUgraphExec exec = instantiate(graph);
  CUstream stream = make_stream();
  EXPECT_NEAR(launch_ms(exec, stream), 2.0f, 0.2f);
  ns = 4'000'000;
  ASSERT_OK(cuGraphExecKernelNodeSetParams_v2(exec, node, &params));
  EXPECT_NEAR(launch_ms(exec, stream), 4.0f, 0.2f);
  ns = 6'000'000;
  ASSERT_OK(cuGraphKernelNodeSetParams_v2(node, &params));
  CUgraphExecUpdateResultInfo info;
  ASSERT_OK(cuGraphExecUpdate_v2(exec, graph, &info));
  EXPECT_NEAR(launch_ms(exec, stream), 6.0f, 0.2f);
  ASSERT_OK(cuGraphClone(&other, graph));
  ASSERT_OK(cuGraphAddKernelNode_v2(&more, other, nullptr, 0, &params));
  EXPECT_EQ(cuGraphExecUpdate_v2(exec, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

TEST_F(Graphs, allocation_nodes_take_memory_at_launch) {
  const size_t before = free_bytes();
  CUgraph graph;
  CUgraphNode allocation, release;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  params.bytesize = 64 * kMiB;
  ASSERT_OK(cuGraphCreate(&graph, 0));
  ASSERT_OK(cuGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &params));
  ASSERT_NE(params.dptr, 0u);
  EXPECT_EQ(free_bytes(), before);
  CUgraphExec keeps = instantiate(graph);
  CUstream stream = make_stream();
  ASSERT_OK(cuGraphLaunch(keeps, stream));
  EXPECT_EQ(before - free_bytes(), 64 * kMiB);
  EXPECT_EQ(cuGraphLaunch(keeps, stream), CUDA_ERROR_INVALID_VALUE);  // still allocated
  ASSERT_OK(cuMemFreeAsync(params.dptr, stream));
  ASSERT_OK(cuStreamSynchronize(stream));
  ASSERT_OK(cuGraphAddMemFreeNode(&release, graph, &allocation, 1, params.dptr));
  CUgraphExec second;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_ERROR_INVALID_VALUE);  // one at a time
  ASSERT_OK(cuGraphExecDestroy(keeps));
  CUgraphExec whole = instantiate(graph);
  for (int i = 0; i < 3; ++i) ASSERT_OK(cuGraphLaunch(whole, stream));
  EXPECT_EQ(before - free_bytes(), 64 * kMiB);
  ASSERT_OK(cuStreamSynchronize(stream));
  ASSERT_OK(cuDeviceGraphMemTrim(device_));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Graphs, reserved_memory_is_counted_and_stays_until_it_is_trimmed) {
  const size_t before = free_bytes();
  const auto attribute = [&](CUgraphMem_attribute which) {
    cuuint64_t bytes = 0;
    EXPECT_OK(cuDeviceGetGraphMemAttribute(device_, which, &bytes));
    return bytes;
  };
  CUgraph graph;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  params.bytesize = 64 * kMiB;
  // Two allocations, the first freed before the second: the graph needs room for one.
  CUgraphNode first, released, second;
  ASSERT_OK(cuGraphCreate(&graph, 0));
  ASSERT_OK(cuGraphAddMemAllocNode(&first, graph, nullptr, 0, &params));
  ASSERT_OK(cuGraphAddMemFreeNode(&released, graph, &first, 1, params.dptr));
  ASSERT_OK(cuGraphAddMemAllocNode(&second, graph, &released, 1, &params));
  CUDA_GRAPH_INSTANTIATE_PARAMS how = {};
  how.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  CUgraphExec exec;
  ASSERT_OK(cuGraphInstantiateWithParams(&exec, graph, &how));
  EXPECT_EQ(before - free_bytes(), 64 * kMiB);  // an upload takes what a launch will need
  EXPECT_EQ(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0u);
  CUstream stream = make_stream();
  ASSERT_OK(cuGraphLaunch(exec, stream));
  ASSERT_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 64 * kMiB);
  ASSERT_OK(cuDeviceGraphMemTrim(device_));
  EXPECT_EQ(before - free_bytes(), 64 * kMiB);  // in use
  ASSERT_OK(cuMemFree_v2(params.dptr));
  EXPECT_EQ(before - free_bytes(), 64 * kMiB);
  EXPECT_EQ(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 64 * kMiB);
  ASSERT_OK(cuGraphExecDestroy(exec));
  ASSERT_OK(cuGraphDestroy(graph));
  EXPECT_EQ(before - free_bytes(), 64 * kMiB);
  ASSERT_OK(cuDeviceGraphMemTrim(device_));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0u);
  EXPECT_EQ(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 64 * kMiB);
  cuuint64_t zero = 0, one = 1;
  EXPECT_OK(cuDeviceSetGraphMemAttribute(device_, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero));
  EXPECT_EQ(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 0u);
  EXPECT_EQ(cuDeviceSetGraphMemAttribute(device_, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &one),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Graphs, a_graph_that_allocates_is_neither_copied_nor_reduced) {
  CUgraph graph, parent, copy;
  CUgraphNode allocation, released, child;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  params.bytesize = kMiB;
  ASSERT_OK(cuGraphCreate(&graph, 0));
  ASSERT_OK(cuGraphCreate(&parent, 0));
  ASSERT_OK(cuGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &params));
  EXPECT_EQ(cuGraphAddMemFreeNode(&released, graph, &allocation, 1, params.dptr + kGranule),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_OK(cuGraphAddMemFreeNode(&released, graph, &allocation, 1, params.dptr));
  EXPECT_EQ(cuGraphAddMemFreeNode(&released, graph, &allocation, 1, params.dptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphClone(&copy, graph), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroyNode(allocation), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphRemoveDependencies(graph, &allocation, &released, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddChildGraphNode(&child, parent, nullptr, 0, graph), CUDA_ERROR_INVALID_VALUE);
  CUgraphNodeParams moved = {};
  moved.type = CU_GRAPH_NODE_TYPE_GRAPH;
  moved.graph.graph = graph;
  moved.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  ASSERT_OK(cuGraphAddNode_v2(&child, parent, nullptr, nullptr, 0, &moved));
  CUstream stream = make_stream();
  ASSERT_OK(cuGraphLaunch(instantiate(parent), stream));
  ASSERT_OK(cuStreamSynchronize(stream));
}

class Capture : public Graphs {};

TEST_F(Capture, a_fork_and_join_becomes_branches) {
  CUstream origin = make_stream();
  CUstream side = make_stream();
  CUevent fork, join;
  ASSERT_OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(cuEventRecord(fork, origin));
  ASSERT_OK(cuStreamWaitEvent(side, fork, 0));
  ASSERT_OK(spin(3'000'000, origin));
  ASSERT_OK(spin(3'000'000, side));
  CUstreamCaptureStatus status;
  ASSERT_OK(cuStreamIsCapturing(side, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_OK(cuEventRecord(join, side));
  ASSERT_OK(cuStreamWaitEvent(origin, join, 0));
  ASSERT_OK(spin(1'000'000, origin));
  CUgraph graph;
  ASSERT_OK(cuStreamEndCapture(origin, &graph));
  size_t nodes = 0;
  ASSERT_OK(cuGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 3u);
  ASSERT_OK(cuStreamIsCapturing(side, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_NEAR(launch_ms(instantiate(graph), origin), 4.0f, 0.3f);
}

TEST_F(Capture, unjoined_work_is_an_error) {
  CUstream origin = make_stream();
  CUstream side = make_stream();
  CUevent fork;
  CUgraph graph;
  ASSERT_OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(cuEventRecord(fork, origin));
  ASSERT_OK(cuStreamWaitEvent(side, fork, 0));
  ASSERT_OK(spin(1'000, side));
  EXPECT_EQ(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(graph, nullptr);
}

TEST_F(Capture, what_would_wait_is_refused_and_spoils_the_capture) {
  CUstream stream = make_stream();
  CUgraph graph;
  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(spin(1'000, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Capture, an_allocation_is_unsafe_unless_the_thread_says_otherwise) {
  CUstream stream = make_stream();
  CUgraph graph;
  CUdeviceptr memory;
  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_OK(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_OK(cuMemAlloc_v2(&memory, 100));
  ASSERT_OK(cuThreadExchangeStreamCaptureMode(&mode));
  std::thread([&] {
    // Another thread is bound by a global capture too.
    EXPECT_OK(cuCtxSetCurrent(context_));
    EXPECT_EQ(cuMemAlloc_v2(&memory, 100), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }).join();
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Capture, the_legacy_stream_cannot_wait_for_a_capturing_one) {
  CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  CUgraph graph;
  ASSERT_OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(spin(1'000, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_OK(spin(1'000, nullptr));
}

TEST_F(Capture, an_event_of_a_capture_has_no_state_to_ask_for) {
  CUstream stream = make_stream();
  CUevent event;
  CUgraph graph;
  ASSERT_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(cuEventRecord(event, stream));
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Capture, memory_that_a_capture_allocates_can_be_used_in_it) {
  CUstream stream = make_stream();
  CUdeviceptr memory, kept;
  CUgraph graph;
  unsigned char seen = 0;
  ASSERT_OK(cuMemAlloc_v2(&kept, 64));
  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(cuMemAllocAsync(&memory, 64 * kMiB, stream));
  ASSERT_OK(cuMemsetD8Async(memory, 6, 64, stream));
  ASSERT_OK(cuMemcpyDtoDAsync_v2(kept, memory, 64, stream));
  ASSERT_OK(cuMemFreeAsync(memory, stream));
  ASSERT_OK(cuStreamEndCapture(stream, &graph));
  ASSERT_OK(cuGraphLaunch(instantiate(graph), stream));
  ASSERT_OK(cuStreamSynchronize(stream));
  ASSERT_OK(cuMemcpyDtoH_v2(&seen, kept, 1));
  EXPECT_EQ(seen, 6);
}

TEST_F(Capture, a_launched_graph_becomes_a_child) {
  CUstream stream = make_stream();
  CUgraph inner, outer;
  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(spin(2'000'000, stream));
  ASSERT_OK(cuStreamEndCapture(stream, &inner));
  CUgraphExec exec = instantiate(inner);
  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(cuGraphLaunch(exec, stream));
  ASSERT_OK(cuGraphLaunch(exec, stream));
  ASSERT_OK(cuStreamEndCapture(stream, &outer));
  size_t nodes = 0;
  ASSERT_OK(cuGraphGetNodes(outer, nullptr, &nodes));
  EXPECT_EQ(nodes, 2u);
  EXPECT_NEAR(launch_ms(instantiate(outer), stream), 4.0f, 0.2f);
}

TEST_F(Capture, dependencies_can_be_read_and_set) {
  CUstream stream = make_stream();
  CUgraph graph, end;
  cuuint64_t id = 0;
  CUstreamCaptureStatus status;
  const CUgraphNode* frontier = nullptr;
  size_t count = 0;
  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(spin(1'000, stream));
  ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &frontier, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_NE(id, 0u);
  CUgraphNode own;
  ASSERT_OK(cuGraphAddEmptyNode(&own, graph, frontier, count));
  ASSERT_OK(cuStreamUpdateCaptureDependencies(stream, &own, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  ASSERT_OK(spin(1'000, stream));
  ASSERT_OK(cuStreamEndCapture(stream, &end));
  EXPECT_EQ(end, graph);
  size_t edges = 0;
  ASSERT_OK(cuGraphGetEdges(end, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 2u);
}
