// SPDX-License-Identifier: Apache-2.0
//
// Allocation nodes take nothing until their graph is launched or uploaded; what the device keeps for graphs
// counts until it is trimmed, and is lent to the next launch even in a full slice.
#include "behaviour.h"

namespace {

constexpr uint64_t kBytes = 512 * kMiB;
CUdevice device;
CUstream stream;

CUdeviceptr add_allocation(CUgraph graph, CUgraphNode* node, const CUgraphNode* after, size_t count) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  params.bytesize = kBytes;
  OK(cuGraphAddMemAllocNode(node, graph, after, count, &params));
  return params.dptr;
}

CUgraphExec instantiate(CUgraph graph, unsigned long long flags) {
  CUgraphExec executable;
  OK(cuGraphInstantiateWithFlags(&executable, graph, flags));
  return executable;
}

void end(CUgraph graph, CUgraphExec executable) {
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
}

void run(CUgraphExec executable) {
  OK(cuGraphLaunch(executable, stream));
  OK(cuStreamSynchronize(stream));
}

}  // namespace

int main() {
  device = start();
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const uint64_t before = free_bytes();
  CUgraph graph;
  CUgraphNode node;

  // Launched, freed, launched again, trimmed.
  OK(cuGraphCreate(&graph, 0));
  const CUdeviceptr address = add_allocation(graph, &node, nullptr, 0);
  CUgraphExec executable = instantiate(graph, 0);
  MUST(free_bytes() == before);
  for (int i = 0; i < 3; i++) {
    run(executable);
    MUST(free_bytes() == before - kBytes);
    OK(cuMemFreeAsync(address, stream));
    OK(cuStreamSynchronize(stream));
    MUST(free_bytes() == before - kBytes);
  }
  end(graph, executable);
  OK(cuDeviceGraphMemTrim(device));
  MUST(free_bytes() == before);

  // Uploaded only.
  OK(cuGraphCreate(&graph, 0));
  add_allocation(graph, &node, nullptr, 0);
  executable = instantiate(graph, 0);
  OK(cuGraphUpload(executable, stream));
  MUST(free_bytes() == before - kBytes);
  end(graph, executable);

  // What graphs keep is given up for memory of another kind.
  CUdeviceptr pointer;
  const uint64_t whole = before / kGranule * kGranule;
  OK(cuMemAlloc(&pointer, whole));
  OK(cuMemFree(pointer));
  MUST(free_bytes() == before);

  // Five allocations one after the other, each freed before the next: more than the slice has, but never at
  // once.
  OK(cuGraphCreate(&graph, 0));
  CUgraphNode last;
  for (int i = 0; i < 5; i++) {
    const CUdeviceptr part = add_allocation(graph, &node, i == 0 ? nullptr : &last, i == 0 ? 0 : 1);
    OK(cuGraphAddMemFreeNode(&last, graph, &node, 1, part));
  }
  executable = instantiate(graph, 0);
  run(executable);
  MUST(free_bytes() == before - kBytes);
  end(graph, executable);
  OK(cuDeviceGraphMemTrim(device));
  MUST(free_bytes() == before);

  // In a full slice the launch is refused, changes nothing, and is granted later.
  OK(cuMemAlloc(&pointer, whole - kBytes / 2));
  OK(cuGraphCreate(&graph, 0));
  add_allocation(graph, &node, nullptr, 0);
  executable = instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  const uint64_t left = free_bytes();
  MUST_BE(cuGraphLaunch(executable, stream), CUDA_ERROR_OUT_OF_MEMORY);
  MUST_BE(cuGraphUpload(executable, stream), CUDA_ERROR_OUT_OF_MEMORY);
  MUST(free_bytes() == left);
  OK(cuMemFree(pointer));
  OK(cuMemAlloc(&pointer, whole - kBytes));
  // It frees its own allocation before it makes it anew: that needs no further room.
  for (int i = 0; i < 3; i++) run(executable);
  MUST(free_bytes() == before - whole);
  OK(cuMemFree(pointer));
  end(graph, executable);

  // It all goes with the context.
  OK(cuDevicePrimaryCtxReset(device));
  start();
  MUST(free_bytes() == before);
  return finish();
}
