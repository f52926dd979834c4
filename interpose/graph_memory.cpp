// SPDX-License-Identifier: Apache-2.0
#include "interpose/graph_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "interpose/gate.h"
#include "interpose/locations.h"
#include "interpose/reservoirs.h"
#include "limiter/address_table.h"

namespace hook {

constinit std::atomic<uint32_t> allocating_graphs{0};

namespace {

constinit limiter::AddressTable needs_by_graph;  // GraphNeeds*, each a mapping of its own

// Memory for as long as a graph is looked at: this library has no heap.
template <typename T>
class Array {
 public:
  Array() = default;
  ~Array() {
    if (items_ != nullptr) munmap(items_, capacity_ * sizeof(T));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  // False: no memory; what was there stays.
  bool reserve(size_t capacity) {
    if (capacity <= capacity_) return true;
    capacity = std::max(capacity, 2 * capacity_);
    void* memory =
        items_ == nullptr
            ? mmap(nullptr, capacity * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            : mremap(items_, capacity_ * sizeof(T), capacity * sizeof(T), MREMAP_MAYMOVE);
    if (memory == MAP_FAILED) return false;
    items_ = static_cast<T*>(memory);
    capacity_ = capacity;
    return true;
  }
  bool add(const T& item) {
    if (!reserve(count_ + 1)) return false;
    items_[count_++] = item;
    return true;
  }
  void resize(size_t count) { count_ = count; }  // Preconditions: reserved
  T* begin() const { return items_; }
  T* end() const { return items_ + count_; }

 private:
  T* items_ = nullptr;
  size_t count_ = 0;
  size_t capacity_ = 0;
};

// A memory node, in the order of the list: an allocation, or with 0 bytes a free.
struct Step {
  CUdevice device;
  uint64_t address;
  uint64_t bytes;
};

struct ListedNode {
  CUgraphNode node;
};
static_assert(sizeof(ListedNode) == sizeof(CUgraphNode));

constexpr uint64_t whole_granules(uint64_t bytes) { return (bytes + kGranule - 1) & ~(kGranule - 1); }

// The memory nodes of a graph and its children. false: no memory for the list, or the driver would not say.
bool list_steps(CUgraph graph, Array<Step>* steps) {
  size_t count = 0;
  if (real<fn::cuGraphGetNodes>(graph, static_cast<CUgraphNode*>(nullptr), &count) != CUDA_SUCCESS)
    return false;
  if (count == 0) return true;
  Array<ListedNode> nodes;
  if (!nodes.reserve(count) || real<fn::cuGraphGetNodes>(graph, &nodes.begin()->node, &count) != CUDA_SUCCESS)
    return false;
  nodes.resize(count);
  for (const auto [node] : nodes) {
    CUgraphNodeType type;
    if (real<fn::cuGraphNodeGetType>(node, &type) != CUDA_SUCCESS) return false;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      CUDA_MEM_ALLOC_NODE_PARAMS params = {};
      if (real<fn::cuGraphMemAllocNodeGetParams>(node, &params) != CUDA_SUCCESS) return false;
      if (!is_on_device(params.poolProps.location)) continue;
      const CUdevice device = device_of(params.poolProps.location);
      if (!steps->add({device, params.dptr, whole_granules(params.bytesize)})) return false;
    } else if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      CUdeviceptr address;
      if (real<fn::cuGraphMemFreeNodeGetParams>(node, &address) != CUDA_SUCCESS) return false;
      if (!steps->add({kNoDevice, address, 0})) return false;
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
      CUgraph child;
      if (real<fn::cuGraphChildGraphNodeGetGraph>(node, &child) != CUDA_SUCCESS) return false;
      if (!list_steps(child, steps)) return false;
    }
  }
  return true;
}

// What is alive at once, at most, if the steps are taken in their order.
uint64_t peak_on(CUdevice device, const Array<Step>& steps) {
  uint64_t live = 0;
  uint64_t peak = 0;
  for (const Step* step = steps.begin(); step != steps.end(); step++) {
    if (step->bytes != 0) {
      if (step->device == device) live += step->bytes;
      peak = std::max(peak, live);
      continue;
    }
    for (const Step* earlier = step; earlier-- != steps.begin();) {
      if (earlier->address != step->address || earlier->bytes == 0) continue;
      if (earlier->device == device) live -= std::min(live, earlier->bytes);
      break;
    }
  }
  return peak;
}

// Preconditions: `steps` are sorted by address.
uint64_t covered_on(CUdevice device, const Array<Step>& steps) {
  uint64_t covered = 0;
  uint64_t end = 0;
  for (const Step& step : steps) {
    if (step.device != device || step.address + step.bytes <= end) continue;
    covered += step.address + step.bytes - std::max(step.address, end);
    end = step.address + step.bytes;
  }
  return covered;
}

GraphNeed* need_on(GraphNeeds* needs, CUdevice device) {
  for (int i = 0; i < needs->count; i++) {
    if (needs->needs[i].device == device) return &needs->needs[i];
  }
  if (needs->count == kMaxGraphDevices) return nullptr;
  GraphNeed* need = &needs->needs[needs->count++];
  need->device = device;
  return need;
}

void delete_needs(GraphNeeds* needs) { munmap(needs, sizeof *needs); }

// nullptr: the graph allocates nothing, or that cannot be told; the broker finds it as overhead then.
GraphNeeds* new_needs(CUgraph graph, unsigned long long flags) {
  Array<Step> steps;
  if (!list_steps(graph, &steps)) return nullptr;
  if (std::none_of(steps.begin(), steps.end(), [](const Step& step) { return step.bytes != 0; }))
    return nullptr;
  void* memory =
      mmap(nullptr, sizeof(GraphNeeds), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* needs = new (memory) GraphNeeds{};
  needs->frees_first = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  for (const Step& step : steps) {
    if (step.bytes != 0) need_on(needs, step.device);
  }
  for (int i = 0; i < needs->count; i++) {
    needs->needs[i].least_bytes = peak_on(needs->needs[i].device, steps);
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.address < b.address; });
  for (int i = 0; i < needs->count; i++) {
    needs->needs[i].most_bytes = covered_on(needs->needs[i].device, steps);
  }
  return needs;
}

void forget_needs(CUgraphExec graph) {
  uint64_t value;
  if (!needs_by_graph.take(reinterpret_cast<uint64_t>(graph), &value)) return;
  allocating_graphs.fetch_sub(1, std::memory_order_relaxed);
  delete_needs(reinterpret_cast<GraphNeeds*>(value));
}

void settle_all(const GraphNeeds& needs) {
  for (int i = 0; i < needs.count; i++) {
    SliceGpu gpu;
    if (standing_on_device(needs.needs[i].device, &gpu) != Standing::kLimited) continue;
    settle(InFlight(gpu), graph_memory_key(needs.needs[i].device), 0);
  }
}

// Instantiates by the driver's `call`, which writes *exec.
template <typename Call>
CUresult instantiated(const char* function, CUgraphExec* exec, CUgraph graph, unsigned long long flags,
                      Call call) {
  if (membership() != Membership::kAttached || exec == nullptr || graph == nullptr) return call();
  GraphNeeds* needs = new_needs(graph, flags);
  if (needs == nullptr) return call();
  const bool uploads = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
  const CUresult result = uploads ? charged_graph(function, *needs, call) : call();
  if (result == CUDA_SUCCESS &&
      needs_by_graph.insert(reinterpret_cast<uint64_t>(*exec), reinterpret_cast<uint64_t>(needs))) {
    needs->was_launched.store(false, std::memory_order_relaxed);
    allocating_graphs.fetch_add(1, std::memory_order_relaxed);
    if (!uploads) settle_all(*needs);
  } else {
    delete_needs(needs);
  }
  return result;
}

template <typename Call>
CUresult uploaded(CUgraphExec graph, const gate::StreamName& stream, Call call) {
  if (!may_allocate(graph) || gate::is_capturing(stream)) return call();
  GraphNeeds& needs = *needs_of(graph);
  const bool was_launched = needs.was_launched.load(std::memory_order_relaxed);
  const CUresult result = charged_graph("cuGraphUpload", needs, call);
  needs.was_launched.store(was_launched, std::memory_order_relaxed);
  return result;
}

}  // namespace

GraphNeeds* needs_of(CUgraphExec graph) {
  uint64_t value;
  return needs_by_graph.find(reinterpret_cast<uint64_t>(graph), &value) ? reinterpret_cast<GraphNeeds*>(value)
                                                                        : nullptr;
}

bool take_graph_growth(const char* function, InFlight& call, const GraphNeeds& needs, const GraphNeed& need,
                       uint64_t* taken_bytes) {
  *taken_bytes = 0;
  const uint64_t key = graph_memory_key(need.device);
  remember_reservoir(key, {need.device, false});
  const auto growth = [&](uint64_t bytes) {
    ReservoirUse use;
    if (!reservoir_use(key, &use)) return bytes;
    // What this graph left alive is freed before it is allocated again.
    if (needs.frees_first && needs.was_launched.load(std::memory_order_relaxed))
      use.used_bytes -= std::min(use.used_bytes, need.most_bytes);
    const uint64_t wanted = use.used_bytes + bytes;
    return wanted - std::min(wanted, use.reserved_bytes);
  };
  const auto take_some = [&] {
    for (const uint64_t bytes : {need.most_bytes, need.least_bytes}) {
      *taken_bytes = growth(bytes);
      if (*taken_bytes == 0 || try_take(call, *taken_bytes)) return true;
    }
    return false;
  };
  bool taken = take_some();
  if (!taken) {
    settle_reservoirs(call);
    taken = take_some();
  }
  // This gives back unused graph memory too, so the growth is another one then.
  if (!taken && trim_reservoirs(call) != 0) taken = take_some();
  if (!taken) taken = take(function, call, *taken_bytes) == CUDA_SUCCESS;
  if (taken) note_growth(call, key, *taken_bytes);
  return taken;
}

void settle_graph_growth(const InFlight& call, const GraphNeed& need, uint64_t taken_bytes) {
  settle(call, graph_memory_key(need.device), taken_bytes);
}

CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                            char* logBuffer, size_t bufferSize) noexcept {
  return instantiated("cuGraphInstantiate", phGraphExec, hGraph, 0, [=] {
    return real<fn::cuGraphInstantiate>(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
  });
}
CUresult cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                               char* logBuffer, size_t bufferSize) noexcept {
  return instantiated("cuGraphInstantiate", phGraphExec, hGraph, 0, [=] {
    return real<fn::cuGraphInstantiate_v2>(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
  });
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                     unsigned long long flags) noexcept {
  return instantiated("cuGraphInstantiateWithFlags", phGraphExec, hGraph, flags,
                      [=] { return real<fn::cuGraphInstantiateWithFlags>(phGraphExec, hGraph, flags); });
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) noexcept {
  return instantiated("cuGraphInstantiateWithParams", phGraphExec, hGraph,
                      instantiateParams != nullptr ? instantiateParams->flags : 0, [=] {
                        return real<fn::cuGraphInstantiateWithParams>(phGraphExec, hGraph, instantiateParams);
                      });
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) noexcept {
  return instantiated(
      "cuGraphInstantiateWithParams", phGraphExec, hGraph,
      instantiateParams != nullptr ? instantiateParams->flags : 0,
      [=] { return real<fn::cuGraphInstantiateWithParams_ptsz>(phGraphExec, hGraph, instantiateParams); });
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) noexcept {
  // Before the driver's call: the handle may be given to another graph right after it. If the driver would
  // not, it is no graph.
  if (may_allocate(hGraphExec)) forget_needs(hGraphExec);
  gate::graph_ending(hGraphExec);
  return real<fn::cuGraphExecDestroy>(hGraphExec);
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) noexcept {
  return uploaded(hGraphExec, {hStream, false}, [=] { return real<fn::cuGraphUpload>(hGraphExec, hStream); });
}
CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) noexcept {
  return uploaded(hGraphExec, {hStream, true},
                  [=] { return real<fn::cuGraphUpload_ptsz>(hGraphExec, hStream); });
}

CUresult cuDeviceGraphMemTrim(CUdevice device) noexcept {
  SliceGpu gpu;
  if (membership() != Membership::kAttached || standing_on_device(device, &gpu) != Standing::kLimited)
    return real<fn::cuDeviceGraphMemTrim>(device);
  const InFlight in_flight(gpu);
  const CUresult result = real<fn::cuDeviceGraphMemTrim>(device);
  if (result == CUDA_SUCCESS) settle(in_flight, graph_memory_key(device), 0);
  return result;
}

void forget_graphs() {
  needs_by_graph.forget();
  allocating_graphs.store(0, std::memory_order_relaxed);
}

}  // namespace hook
