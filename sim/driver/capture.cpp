// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/capture.h"

#include <algorithm>
#include <set>

#include "sim/driver/graph.h"

namespace sim {
namespace {

// Lock order: a capture, this list, a stream.
struct Captures {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> active;
  std::atomic<size_t> count{0};  // read without the lock: most programs never capture
  uint64_t next_id = 1;
};

Captures& captures() {
  static Captures& instance = *new Captures;
  return instance;
}

thread_local constinit CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

uint64_t this_thread() {
  static thread_local char identity;
  return reinterpret_cast<uint64_t>(&identity);
}

std::shared_ptr<Capture> capture_of(CUstream_st* stream) {
  std::lock_guard lock(stream->mutex);
  return stream->capture;
}

// Precondition: capture->mutex held.
void leave(CUstream_st* stream) {
  std::lock_guard lock(stream->mutex);
  stream->capturing = false;
  stream->capture.reset();
  stream->frontier.clear();
}

void take_out(const std::shared_ptr<Capture>& capture) {
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  if (std::erase(all.active, capture) != 0) --all.count;
}

// True if all nodes that the capture added lie before the origin's frontier.
bool joined(const Capture& capture, const std::vector<CUgraphNode>& frontier) {
  std::set<CUgraphNode> ends(frontier.begin(), frontier.end());
  for (CUstream_st* stream : capture.streams) {
    std::lock_guard lock(stream->mutex);
    for (CUgraphNode node : stream->frontier) {
      if (ends.count(node) == 0 && node->dependents.empty()) return false;
    }
  }
  return true;
}

void merge(std::vector<CUgraphNode>& into, const std::vector<CUgraphNode>& nodes) {
  for (CUgraphNode node : nodes) {
    if (std::find(into.begin(), into.end(), node) == into.end()) into.push_back(node);
  }
}

CUresult begin(CUstream handle, CUstreamCaptureMode mode, CUgraph graph, const CUgraphNode* dependencies,
               size_t dependency_count) {
  CUstream_st* stream;
  if (CUresult error = find_stream(handle, &stream)) return error;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->is_legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->graph_is_the_callers = graph != nullptr;
  capture->graph = graph != nullptr ? graph : new CUgraph_st;
  capture->mode = mode;
  capture->origin = stream;
  capture->thread = this_thread();
  capture->streams.push_back(stream);
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  capture->id = all.next_id++;
  all.active.push_back(capture);
  ++all.count;
  std::lock_guard stream_lock(stream->mutex);
  stream->capture = capture;
  stream->frontier.assign(dependencies, dependencies + dependency_count);
  stream->capturing = true;
  return CUDA_SUCCESS;
}

CUresult end(CUstream handle, CUgraph* graph) {
  CUstream_st* stream;
  if (CUresult error = find_stream(handle, &stream)) return error;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = capture_of(stream);
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread()) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  std::lock_guard lock(capture->mutex);
  std::vector<CUgraphNode> frontier;
  {
    std::lock_guard stream_lock(stream->mutex);
    frontier = stream->frontier;
  }
  CUresult result = CUDA_SUCCESS;
  if (capture->invalid) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!joined(*capture, frontier)) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  capture->invalid = true;  // events that still name it cannot be used to join it any more
  for (CUstream_st* member : capture->streams) leave(member);
  capture->streams.clear();
  take_out(capture);
  if (result == CUDA_SUCCESS) {
    *graph = capture->graph;
  } else if (!capture->graph_is_the_callers) {
    delete capture->graph;
    capture->graph = nullptr;
  }
  return result;
}

struct CaptureState {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t id = 0;
  CUgraph graph = nullptr;
};

// Looks at a stream's capture; `dependencies` stays valid until the stream's next operation, as the driver
// promises.
CUresult look(CUstream handle, CaptureState* state, const CUgraphNode** dependencies, size_t* count) {
  CUstream_st* stream;
  if (CUresult error = find_stream(handle, &stream)) return error;
  if (CUresult error = refuse_legacy_during_capture(stream)) return error;
  std::lock_guard lock(stream->mutex);
  if (stream->capture == nullptr) return CUDA_SUCCESS;
  state->status =
      stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  state->id = stream->capture->id;
  state->graph = stream->capture->graph;
  if (state->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (dependencies != nullptr) *dependencies = stream->frontier.data();
  if (count != nullptr) *count = stream->frontier.size();
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  CaptureState state;
  if (CUresult error = look(stream, &state, dependencies, count)) return error;
  *status = state.status;
  if (id != nullptr) *id = state.id;
  if (graph != nullptr) *graph = state.graph;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult capture_action(CUstream_st* stream, Action action) {
  const std::shared_ptr<Capture> capture = capture_of(stream);
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::lock_guard lock(capture->mutex);
  std::lock_guard stream_lock(stream->mutex);
  const CUgraphNodeType type = node_type(action);
  CUgraphNode node =
      add_node(capture->graph, type, std::move(action), stream->frontier.data(), stream->frontier.size());
  node->context = stream->context;
  stream->frontier.assign(1, node);
  return CUDA_SUCCESS;
}

CUresult capture_event(CUstream_st* stream, CUevent event) {
  std::lock_guard stream_lock(stream->mutex);
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::lock_guard lock(event->mutex);
  event->capture = stream->capture;
  event->frontier = stream->frontier;
  event->moment.reset();
  return CUDA_SUCCESS;
}

CUresult join_capture(CUstream_st* stream, CUevent event) {
  std::shared_ptr<Capture> capture;
  std::vector<CUgraphNode> nodes;
  {
    std::lock_guard lock(event->mutex);
    capture = event->capture;
    nodes = event->frontier;
  }
  const std::shared_ptr<Capture> own = capture_of(stream);
  if (stream->is_legacy()) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (capture->graph == nullptr || (capture->invalid && own == nullptr))
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (own != nullptr && own != capture) {
    own->invalid = true;
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::lock_guard lock(capture->mutex);
  std::lock_guard stream_lock(stream->mutex);
  if (own == nullptr) {
    stream->capture = capture;
    stream->frontier = nodes;
    stream->capturing = true;
    capture->streams.push_back(stream);
  } else {
    merge(stream->frontier, nodes);
  }
  return CUDA_SUCCESS;
}

void invalidate_capture(Capture& capture) { capture.invalid = true; }

void invalidate_capture(CUstream_st* stream) {
  if (const std::shared_ptr<Capture> capture = capture_of(stream)) capture->invalid = true;
}

void abandon_captures(CUctx_st* context) {
  std::vector<std::shared_ptr<Capture>> ended;
  Captures& all = captures();
  {
    std::lock_guard lock(all.mutex);
    for (const auto& capture : all.active) {
      if (capture->origin->context == context) ended.push_back(capture);
    }
  }
  for (const auto& capture : ended) {
    capture->invalid = true;
    std::lock_guard lock(capture->mutex);
    for (CUstream_st* member : capture->streams) leave(member);
    take_out(capture);
  }
}

CUresult refuse_legacy_during_capture(CUstream_st* stream) {
  Captures& all = captures();
  if (all.count.load(std::memory_order_relaxed) == 0 || !stream->is_legacy()) return CUDA_SUCCESS;
  std::vector<std::shared_ptr<Capture>> active;
  {
    std::lock_guard lock(all.mutex);
    active = all.active;
  }
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : active) {
    std::lock_guard lock(capture->mutex);
    for (CUstream_st* member : capture->streams) {
      if (member->context != stream->context || !member->blocking()) continue;
      capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return result;
}

CUresult refuse_during_capture() {
  Captures& all = captures();
  if (all.count.load(std::memory_order_relaxed) == 0 || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_SUCCESS;
  }
  std::lock_guard lock(all.mutex);
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : all.active) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool own = capture->thread == this_thread();
    const bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (own || (global && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL)) {
      capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

}  // namespace sim

SIM_API(cuStreamBeginCapture_v2)(CUstream stream, CUstreamCaptureMode mode) {
  return sim::begin(stream, mode, nullptr, nullptr, 0);
}
SIM_API(cuStreamBeginCapture)(CUstream stream) {
  return sim::begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr, nullptr, 0);
}
SIM_API(cuStreamBeginCaptureToGraph)
(CUstream stream, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData*, size_t count,
 CUstreamCaptureMode mode) {
  if (!sim::is_graph(graph) || (count != 0 && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  return sim::begin(stream, mode, graph, dependencies, count);
}
SIM_API(cuStreamEndCapture)(CUstream stream, CUgraph* graph) { return sim::end(stream, graph); }

SIM_API(cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, sim::thread_mode);
  return CUDA_SUCCESS;
}

SIM_API(cuStreamIsCapturing)(CUstream stream, CUstreamCaptureStatus* status) {
  return sim::capture_info(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
SIM_API(cuStreamGetCaptureInfo)(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return sim::capture_info(stream, status, id, nullptr, nullptr, nullptr, nullptr);
}
SIM_API(cuStreamGetCaptureInfo_v2)
(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
 const CUgraphNode** dependencies, size_t* count) {
  return sim::capture_info(stream, status, id, graph, dependencies, nullptr, count);
}
SIM_API(cuStreamGetCaptureInfo_v3)
(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
 const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  return sim::capture_info(stream, status, id, graph, dependencies, edges, count);
}

SIM_API(cuStreamUpdateCaptureDependencies)
(CUstream handle, CUgraphNode* dependencies, size_t count, unsigned flags) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count != 0 && dependencies == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(stream->mutex);
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->frontier.clear();
  sim::merge(stream->frontier, {dependencies, dependencies + count});
  return CUDA_SUCCESS;
}
SIM_API(cuStreamUpdateCaptureDependencies_v2)
(CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData*, size_t count, unsigned flags) {
  return sim_cuStreamUpdateCaptureDependencies(stream, dependencies, count, flags);
}
