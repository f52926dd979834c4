// SPDX-License-Identifier: Apache-2.0
//
// Memory of graphs' allocation nodes. A node takes nothing: the driver takes memory when the instantiated
// graph is uploaded or launched, keeps it in the device's graph memory for the next launch, and gives it back
// when that is trimmed. So what a graph needs is noted when it is instantiated, and each launch is charged
// with what the graph memory may have to grow by for it.
#pragma once

#include <atomic>

#include "interpose/quota.h"

namespace hook {

// What an instantiated graph needs on one device.
struct GraphNeed {
  CUdevice device;
  uint64_t most_bytes;   // all its allocations, an address counted once: the driver reuses inside a graph
  uint64_t least_bytes;  // the most that is alive at once, in the order in which the driver lists the nodes
};

constexpr int kMaxGraphDevices = 64;
struct GraphNeeds {
  bool frees_first;                // CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
  std::atomic<bool> was_launched;  // then its allocations may be alive already
  int count;
  GraphNeed needs[kMaxGraphDevices];
};

// How many instantiated graphs of this process allocate.
[[gnu::visibility("hidden")]] extern constinit std::atomic<uint32_t> allocating_graphs;

// nullptr: the graph allocates nothing. Valid until it is destroyed.
GraphNeeds* needs_of(CUgraphExec graph);
inline bool may_allocate(CUgraphExec graph) {
  return allocating_graphs.load(std::memory_order_relaxed) != 0 && needs_of(graph) != nullptr;
}

// Launches or uploads by the driver's `call`, charged. Preconditions: the stream is not being captured.
template <typename Call>
CUresult charged_graph(const char* function, GraphNeeds& needs, Call call);

void forget_graphs();

// For charged_graph(): takes what the graph memory of the call's GPU may grow by, or nothing after a refusal
// was reported; sets the charge right once the driver has answered.
bool take_graph_growth(const char* function, InFlight& call, const GraphNeeds& needs, const GraphNeed& need,
                       uint64_t* taken_bytes);
void settle_graph_growth(const InFlight& call, const GraphNeed& need, uint64_t taken_bytes);

template <typename Call>
CUresult grow_from(const char* function, GraphNeeds& needs, int index, Call call) {
  if (index == needs.count) return call();
  const GraphNeed& need = needs.needs[index];
  SliceGpu gpu;
  const Standing standing = standing_on_device(need.device, &gpu);
  if (const CUresult refused = barred(standing, need.device); refused != CUDA_SUCCESS) return refused;
  const auto rest = [&] { return grow_from(function, needs, index + 1, call); };
  if (standing == Standing::kUnlimited) return rest();
  InFlight in_flight(gpu);
  await_first_measurement(in_flight);
  uint64_t taken_bytes;
  if (!take_graph_growth(function, in_flight, needs, need, &taken_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = ask_driver(function, in_flight, taken_bytes, rest);
  settle_graph_growth(in_flight, need, taken_bytes);
  return result;
}

template <typename Call>
CUresult charged_graph(const char* function, GraphNeeds& needs, Call call) {
  const CUresult result = grow_from(function, needs, 0, call);
  if (result == CUDA_SUCCESS) needs.was_launched.store(true, std::memory_order_relaxed);
  return result;
}

}  // namespace hook
