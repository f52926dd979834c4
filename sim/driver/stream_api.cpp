// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/driver/capture.h"
#include "sim/driver/stream.h"

namespace sim {
namespace {

CUresult create_stream(CUstream* result, unsigned flags, int priority) {
  CUctx_st* context;
  if (CUresult error = current_context(&context)) return error;
  if (result == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  *result = make_stream(context, flags, std::clamp(priority, -5, 0));
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_API(cuStreamCreate)(CUstream* stream, unsigned flags) { return sim::create_stream(stream, flags, 0); }

SIM_API(cuStreamCreateWithPriority)(CUstream* stream, unsigned flags, int priority) {
  return sim::create_stream(stream, flags, priority);
}

SIM_API(cuStreamDestroy_v2)(CUstream handle) {
  if (CUresult error = sim::ready()) return error;
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  CUstream_st* stream;
  const CUresult found = sim::find_stream(handle, &stream);
  if (found == CUDA_ERROR_STREAM_DETACHED) {
    stream = handle;
  } else if (found != CUDA_SUCCESS) {
    return found;
  }
  if (stream->capturing) sim::invalidate_capture(stream);
  {
    std::lock_guard lock(stream->context->mutex);
    if (std::erase(stream->context->streams, stream) == 0) return CUDA_ERROR_INVALID_HANDLE;
  }
  sim::end_stream(stream, false);
  return CUDA_SUCCESS;
}
SIM_API(cuStreamDestroy)(CUstream stream) { return sim_cuStreamDestroy_v2(stream); }

SIM_API(cuStreamSynchronize)(CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (CUresult error = sim::refuse_capturing(stream)) return error;
  if (CUresult error = sim::refuse_legacy_during_capture(stream)) return error;
  return sim::synchronize_stream(stream);
}

SIM_API(cuStreamQuery)(CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (CUresult error = sim::refuse_capturing(stream)) return error;
  if (CUresult error = sim::refuse_legacy_during_capture(stream)) return error;
  const bool others =
      stream->is_legacy() && stream->context->blocking_work != stream->context->blocking_work_seen;
  const sim::MomentPtr end = others ? sim::record_in(stream, false) : sim::end_of(stream);
  return end->done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_API(cuStreamGetPriority)(CUstream handle, int* priority) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

SIM_API(cuStreamGetFlags)(CUstream handle, unsigned* flags) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

SIM_API(cuStreamGetId)(CUstream handle, unsigned long long* id) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}

SIM_API(cuStreamGetDevice)(CUstream handle, CUdevice* device) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = stream->context->device;
  return CUDA_SUCCESS;
}

SIM_API(cuStreamGetCtx)(CUstream handle, CUcontext* context) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = stream->context;
  return CUDA_SUCCESS;
}

SIM_API(cuStreamGetCtx_v2)(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (context == nullptr || green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = stream->context->owner;
  *green = stream->context->green;
  return CUDA_SUCCESS;
}

SIM_API(cuStreamGetGreenCtx)(CUstream handle, CUgreenCtx* green) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *green = stream->context->green;
  return CUDA_SUCCESS;
}

SIM_API(cuStreamGetAttribute)(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (value == nullptr || attribute < 0 || attribute >= CU_LAUNCH_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  *value = stream->attributes[attribute];
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream->priority;
  return CUDA_SUCCESS;
}

SIM_API(cuStreamSetAttribute)(CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (value == nullptr || attribute < 0 || attribute >= CU_LAUNCH_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  stream->attributes[attribute] = *value;
  return CUDA_SUCCESS;
}

SIM_API(cuStreamCopyAttributes)(CUstream to_handle, CUstream from_handle) {
  CUstream_st* to;
  CUstream_st* from;
  if (CUresult error = sim::find_stream(to_handle, &to)) return error;
  if (CUresult error = sim::find_stream(from_handle, &from)) return error;
  std::copy(std::begin(from->attributes), std::end(from->attributes), to->attributes);
  return CUDA_SUCCESS;
}

SIM_API(cuStreamAttachMemAsync)(CUstream handle, CUdeviceptr, size_t, unsigned) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  return sim::perform(stream, sim::Nothing{});
}
