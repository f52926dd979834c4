// SPDX-License-Identifier: Apache-2.0
//
// Stream capture: what is given to a capturing stream becomes nodes of a graph. One capture may span streams,
// which join it by waiting for one of its events.
#pragma once

#include "sim/driver/event.h"
#include "sim/driver/stream.h"

namespace sim {

struct Capture {
  std::mutex mutex;  // guards graph and streams; taken before a stream's
  CUgraph_st* graph = nullptr;
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUstream_st* origin = nullptr;
  uint64_t thread = 0;
  bool graph_is_the_callers = false;  // cuStreamBeginCaptureToGraph
  std::atomic<bool> invalid{false};
  std::vector<CUstream_st*> streams;
};

// Makes the action a node. Precondition: the stream was seen capturing.
CUresult capture_action(CUstream_st* stream, Action action);
CUresult capture_event(CUstream_st* stream, CUevent event);
// The stream waits for an event of a capture: it joins, or its frontier grows.
CUresult join_capture(CUstream_st* stream, CUevent event);

void invalidate_capture(Capture& capture);
void invalidate_capture(CUstream_st* stream);
void abandon_captures(CUctx_st* context);

// The legacy stream waits for blocking streams, which is impossible while one of them captures.
CUresult refuse_legacy_during_capture(CUstream_st* stream);

// Entry of functions that may not be called while a capture is going on that this thread has to respect, as
// they could synchronise behind its back (cuMemAlloc, cuCtxSynchronize ...).
CUresult refuse_during_capture();

}  // namespace sim
