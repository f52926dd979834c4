// SPDX-License-Identifier: Apache-2.0
//
// The hooks of Capture rows, and of rows that make or destroy a stream: where one begins or stops being one
// that our own thread may record events in. A capture is counted from before it begins until the stream says
// that it is over.
#include "interpose/gate.h"

namespace hook {
namespace {

template <uint32_t index, bool per_thread, typename... Arguments>
CUresult begin_capture(CUstream stream, Arguments... arguments) noexcept {
  gate::capture_began();
  gate::stream_closing(stream, per_thread);
  const CUresult result = real<index>(stream, arguments...);
  if (result != CUDA_SUCCESS) {
    gate::capture_ended();
    gate::stream_began(stream, per_thread);
  }
  return result;
}

// A capture that was broken ends too, with an error; one that another thread has to end goes on.
template <uint32_t index, bool per_thread, typename... Arguments>
CUresult end_capture(CUstream stream, Arguments... arguments) noexcept {
  const bool captured = gate::is_capturing({stream, per_thread});
  const CUresult result = real<index>(stream, arguments...);
  if (captured && !gate::is_capturing({stream, per_thread})) {
    gate::capture_ended();
    gate::stream_began(stream, per_thread);
  }
  return result;
}

template <uint32_t index, typename... Arguments>
CUresult create(CUstream* stream, Arguments... arguments) noexcept {
  const CUresult result = real<index>(stream, arguments...);
  if (result == CUDA_SUCCESS) gate::stream_began(*stream, false);
  return result;
}

template <uint32_t index>
CUresult destroy(CUstream stream) noexcept {
  gate::stream_ending(stream);
  return real<index>(stream);
}

}  // namespace

CUresult cuStreamBeginCapture(CUstream hStream) noexcept {
  return begin_capture<fn::cuStreamBeginCapture, false>(hStream);
}
CUresult cuStreamBeginCapture_ptsz(CUstream hStream) noexcept {
  return begin_capture<fn::cuStreamBeginCapture_ptsz, true>(hStream);
}
CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) noexcept {
  return begin_capture<fn::cuStreamBeginCapture_v2, false>(hStream, mode);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode) noexcept {
  return begin_capture<fn::cuStreamBeginCapture_v2_ptsz, true>(hStream, mode);
}
CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode) noexcept {
  return begin_capture<fn::cuStreamBeginCaptureToGraph, false>(hStream, hGraph, dependencies, dependencyData,
                                                               numDependencies, mode);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph, const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                          CUstreamCaptureMode mode) noexcept {
  return begin_capture<fn::cuStreamBeginCaptureToGraph_ptsz, true>(hStream, hGraph, dependencies,
                                                                   dependencyData, numDependencies, mode);
}
CUresult cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
                                       CUgraphRecaptureCallback callbackFunc, void* userData) noexcept {
  return begin_capture<fn::cuStreamBeginRecaptureToGraph, false>(hStream, mode, hGraph, callbackFunc,
                                                                 userData);
}
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
                                            CUgraphRecaptureCallback callbackFunc, void* userData) noexcept {
  return begin_capture<fn::cuStreamBeginRecaptureToGraph_ptsz, true>(hStream, mode, hGraph, callbackFunc,
                                                                     userData);
}
CUresult cuStreamBeginCaptureToCig(CUstream hStream,
                                   CUstreamCigCaptureParams* streamCigCaptureParams) noexcept {
  return begin_capture<fn::cuStreamBeginCaptureToCig, false>(hStream, streamCigCaptureParams);
}
CUresult cuStreamBeginCaptureToCig_ptsz(CUstream hStream,
                                        CUstreamCigCaptureParams* streamCigCaptureParams) noexcept {
  return begin_capture<fn::cuStreamBeginCaptureToCig_ptsz, true>(hStream, streamCigCaptureParams);
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) noexcept {
  return end_capture<fn::cuStreamEndCapture, false>(hStream, phGraph);
}
CUresult cuStreamEndCapture_ptsz(CUstream hStream, CUgraph* phGraph) noexcept {
  return end_capture<fn::cuStreamEndCapture_ptsz, true>(hStream, phGraph);
}
CUresult cuStreamEndCaptureToCig(CUstream hStream) noexcept {
  return end_capture<fn::cuStreamEndCaptureToCig, false>(hStream);
}
CUresult cuStreamEndCaptureToCig_ptsz(CUstream hStream) noexcept {
  return end_capture<fn::cuStreamEndCaptureToCig_ptsz, true>(hStream);
}

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) noexcept {
  return create<fn::cuStreamCreate>(phStream, Flags);
}
CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) noexcept {
  return create<fn::cuStreamCreateWithPriority>(phStream, flags, priority);
}
CUresult cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags,
                                int priority) noexcept {
  return create<fn::cuGreenCtxStreamCreate>(phStream, greenCtx, flags, priority);
}

CUresult cuStreamDestroy(CUstream hStream) noexcept { return destroy<fn::cuStreamDestroy>(hStream); }
CUresult cuStreamDestroy_v2(CUstream hStream) noexcept { return destroy<fn::cuStreamDestroy_v2>(hStream); }

}  // namespace hook
