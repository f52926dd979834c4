// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/event.h"

#include "sim/driver/capture.h"
#include "sim/driver/ipc_event.h"
#include "sim/driver/pools.h"

namespace sim {
namespace {

// An event that belongs to a capture has no state that could be asked for; asking spoils the capture.
CUresult check_not_captured(CUevent event) {
  std::shared_ptr<Capture> capture;
  {
    std::lock_guard lock(event->mutex);
    capture = event->capture;
  }
  if (capture == nullptr) return CUDA_SUCCESS;
  invalidate_capture(*capture);
  return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace

CUresult check_event(CUevent event) {
  if (CUresult error = ready()) return error;
  return event != nullptr && event->magic == CUevent_st::kMagic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult record_event(CUevent event, CUstream handle, unsigned flags) {
  if (CUresult error = check_event(event)) return error;
  if ((flags & ~CU_EVENT_RECORD_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
  CUstream_st* stream;
  if (CUresult error = find_stream(handle, &stream)) return error;
  if (stream->context->owner != event->context->owner) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capturing) {
    if (flags & CU_EVENT_RECORD_EXTERNAL) return capture_action(stream, RecordEvent{event});
    return capture_event(stream, event);
  }
  if (CUresult error = refuse_legacy_during_capture(stream)) return error;
  enqueue(stream, Record{renew_moment(event), event->timed()});
  return CUDA_SUCCESS;
}

MomentPtr moment_of(CUevent event) {
  std::lock_guard lock(event->mutex);
  return event->shared != nullptr ? SharedEvent::last(event->shared, event->moment) : event->moment;
}

MomentPtr renew_moment(CUevent event) {
  const MomentPtr moment = event->shared != nullptr ? SharedEvent::renew(event->shared, event->context)
                                                    : std::make_shared<Moment>();
  std::lock_guard lock(event->mutex);
  event->capture.reset();
  event->frontier.clear();
  event->moment = moment;
  return moment;
}

}  // namespace sim

SIM_API(cuEventCreate)(CUevent* event, unsigned flags) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (event == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<sim::SharedEvent> shared;
  if (flags & CU_EVENT_INTERPROCESS) {
    shared = sim::SharedEvent::make();
    if (shared == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *event = new CUevent_st(context, flags, std::move(shared));
  return CUDA_SUCCESS;
}

SIM_API(cuEventDestroy_v2)(CUevent event) {
  if (CUresult error = sim::check_event(event)) return error;
  event->magic = 0;
  delete event;
  return CUDA_SUCCESS;
}
SIM_API(cuEventDestroy)(CUevent event) { return sim_cuEventDestroy_v2(event); }

SIM_API(cuEventRecord)(CUevent event, CUstream stream) { return sim::record_event(event, stream, 0); }
SIM_API(cuEventRecordWithFlags)(CUevent event, CUstream stream, unsigned flags) {
  return sim::record_event(event, stream, flags);
}

SIM_API(cuEventQuery)(CUevent event) {
  if (CUresult error = sim::check_event(event)) return error;
  if (CUresult error = sim::check_not_captured(event)) return error;
  const sim::MomentPtr moment = sim::moment_of(event);
  return moment == nullptr || moment->done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_API(cuEventSynchronize)(CUevent event) {
  if (CUresult error = sim::check_event(event)) return error;
  if (CUresult error = sim::check_not_captured(event)) return error;
  if (const sim::MomentPtr moment = sim::moment_of(event)) moment->wait();
  sim::release_idle_pool_memory(event->context->device);
  return CUDA_SUCCESS;
}

SIM_API(cuEventElapsedTime_v2)(float* milliseconds, CUevent start, CUevent end) {
  if (CUresult error = sim::check_event(start)) return error;
  if (CUresult error = sim::check_event(end)) return error;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!start->timed() || !end->timed()) return CUDA_ERROR_INVALID_HANDLE;
  const sim::MomentPtr from = sim::moment_of(start);
  const sim::MomentPtr to = sim::moment_of(end);
  if (from == nullptr || to == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t from_ns = from->done_at_ns();
  const uint64_t to_ns = to->done_at_ns();
  if (from_ns == 0 || to_ns == 0) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<double>(static_cast<int64_t>(to_ns - from_ns)) * 1e-6);
  return CUDA_SUCCESS;
}
SIM_API(cuEventElapsedTime)(float* milliseconds, CUevent start, CUevent end) {
  return sim_cuEventElapsedTime_v2(milliseconds, start, end);
}

SIM_API(cuStreamWaitEvent)(CUstream handle, CUevent event, unsigned flags) {
  if (CUresult error = sim::check_event(event)) return error;
  if ((flags & ~CU_EVENT_WAIT_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  std::shared_ptr<sim::Capture> capture;
  {
    std::lock_guard lock(event->mutex);
    capture = event->capture;
  }
  const sim::MomentPtr moment = sim::moment_of(event);
  if (flags & CU_EVENT_WAIT_EXTERNAL) {
    if (!stream->capturing) return CUDA_ERROR_INVALID_VALUE;
    return sim::capture_action(stream, sim::AwaitEvent{event});
  }
  if (capture != nullptr) return sim::join_capture(stream, event);
  if (stream->capturing) {
    // Work outside of the capture cannot be waited for by a graph.
    if (moment == nullptr) return CUDA_SUCCESS;
    sim::invalidate_capture(stream);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (CUresult error = sim::refuse_legacy_during_capture(stream)) return error;
  if (moment != nullptr) sim::enqueue(stream, sim::Await{moment});
  return CUDA_SUCCESS;
}
