// SPDX-License-Identifier: Apache-2.0
//
// Green contexts: SMs split into partitions, and contexts whose kernels keep to one. Workqueues are not
// simulated; a configuration of them is accepted and has no effect.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "sim/driver/capture.h"
#include "sim/driver/event.h"
#include "sim/driver/stream.h"

struct CUdevResourceDesc_st {
  CUdevice device;
  unsigned first_sm, sm_count;  // 0 SMs: none were named, so all are meant
};

struct CUgreenCtx_st {
  static constexpr uint32_t kMagic = 0x67637831;
  uint32_t magic = kMagic;
  CUdevice device;
  CUdevResource sms;
  CUctx_st* context = nullptr;
};

namespace sim {
namespace {

// What a resource says beside its public fields, kept where the structure has room for the driver's own.
struct Origin {
  static constexpr uint32_t kMagic = 0x736d7331;
  uint32_t magic;
  int32_t device;
  uint32_t first_sm;
  uint32_t split;     // which split it came from; 0: from none
  uint32_t is_group;  // of a split by count, that is: cannot be split again
};
static_assert(sizeof(Origin) <= sizeof(CUdevResource::_internal_padding));

Origin origin_of(const CUdevResource& resource) {
  Origin origin;
  memcpy(&origin, resource._internal_padding, sizeof origin);
  return origin;
}

unsigned alignment(CUdevice device) { return device_model(device).cc_major >= 9 ? 8 : 2; }

CUdevResource sm_resource(const Origin& origin, unsigned count, unsigned aligned_to) {
  CUdevResource resource{};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  memcpy(resource._internal_padding, &origin, sizeof origin);
  resource.sm.smCount = count;
  resource.sm.minSmPartitionSize = aligned_to;
  resource.sm.smCoscheduledAlignment = aligned_to;
  return resource;
}

CUresult get_resource(CUdevice device, const CUdevResource& sms, CUdevResource* resource,
                      CUdevResourceType type) {
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (type) {
    case CU_DEV_RESOURCE_TYPE_SM:
      *resource = sms;
      return CUDA_SUCCESS;
    case CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG:
      *resource = {};
      resource->type = type;
      resource->wqConfig.device = device;
      resource->wqConfig.wqConcurrencyLimit = 8;  // CUDA_DEVICE_MAX_CONNECTIONS unless set
      return CUDA_SUCCESS;
    case CU_DEV_RESOURCE_TYPE_WORKQUEUE:
      *resource = {};
      resource->type = type;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  }
}

CUdevResource all_sms(CUdevice device) {
  return sm_resource({Origin::kMagic, device, 0, 0, 0}, device_model(device).sm_count, alignment(device));
}

CUdevResource sms_of(CUctx_st* context) {
  return context->green != nullptr ? context->green->sms : all_sms(context->device);
}

CUresult check_sms(const CUdevResource* input) {
  if (CUresult error = ready()) return error;
  if (input == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  const Origin origin = origin_of(*input);
  return origin.magic == Origin::kMagic && valid_device(origin.device) ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_INVALID_VALUE;
}

uint32_t next_split() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

// Contexts on the same SMs share them, so they have one partition.
CUresult partition_of(const CUdevResourceDesc_st& desc, Partition* partition) {
  static std::mutex& mutex = *new std::mutex;
  static auto* const known = new std::vector<std::pair<unsigned, unsigned>>[kMaxDevices];
  std::lock_guard lock(mutex);
  auto& of_device = known[desc.device];
  const std::pair<unsigned, unsigned> sms{desc.first_sm, desc.sm_count};
  auto found = std::find(of_device.begin(), of_device.end(), sms);
  if (found == of_device.end()) {
    if (of_device.size() == UINT8_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    found = of_device.insert(found, sms);
  }
  *partition = {static_cast<uint8_t>(found - of_device.begin() + 1), desc.sm_count};
  return CUDA_SUCCESS;
}

CUresult check_green(CUgreenCtx green) {
  if (CUresult error = ready()) return error;
  return green != nullptr && green->magic == CUgreenCtx_st::kMagic ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_CONTEXT;
}

std::vector<CUstream_st*> streams_of(CUctx_st* context) {
  std::lock_guard lock(context->mutex);
  std::vector<CUstream_st*> streams = context->streams;
  streams.push_back(context->legacy);
  return streams;
}

// Captures cannot go on past a call that concerns all of a context's streams.
CUresult refuse_captures_in(const std::vector<CUstream_st*>& streams) {
  CUresult result = CUDA_SUCCESS;
  for (CUstream_st* stream : streams) {
    if (!stream->capturing) continue;
    invalidate_capture(stream);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult record_context(CUctx_st* context, CUevent event) {
  if (event == nullptr || event->magic != CUevent_st::kMagic || event->context->owner != context->owner) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const std::vector<CUstream_st*> streams = streams_of(context);
  if (CUresult error = refuse_captures_in(streams)) return error;
  for (CUstream_st* stream : streams) {
    if (stream != context->legacy) enqueue(context->legacy, Await{end_of(stream)});
  }
  enqueue(context->legacy, Record{renew_moment(event), event->timed()});
  return CUDA_SUCCESS;
}

CUresult await_in_context(CUctx_st* context, CUevent event) {
  if (event == nullptr || event->magic != CUevent_st::kMagic) return CUDA_ERROR_INVALID_HANDLE;
  const std::vector<CUstream_st*> streams = streams_of(context);
  if (CUresult error = refuse_captures_in(streams)) return error;
  std::shared_ptr<Capture> capture;
  {
    std::lock_guard lock(event->mutex);
    capture = event->capture;
  }
  if (capture != nullptr) {
    invalidate_capture(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const MomentPtr moment = moment_of(event);
  if (moment == nullptr) return CUDA_SUCCESS;
  {
    std::lock_guard lock(context->mutex);
    context->awaited.push_back(moment);
  }
  for (CUstream_st* stream : streams) enqueue(stream, Await{moment});
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_API(cuDeviceGetDevResource)(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  if (CUresult error = sim::check_device(device)) return error;
  return sim::get_resource(device, sim::all_sms(device), resource, type);
}

SIM_API(cuCtxGetDevResource)(CUcontext handle, CUdevResource* resource, CUdevResourceType type) {
  CUctx_st* context;
  if (CUresult error = sim::context_of(handle, &context)) return error;
  return sim::get_resource(context->device, sim::sms_of(context), resource, type);
}

SIM_API(cuGreenCtxGetDevResource)(CUgreenCtx green, CUdevResource* resource, CUdevResourceType type) {
  if (CUresult error = sim::check_green(green)) return error;
  return sim::get_resource(green->device, green->sms, resource, type);
}

SIM_API(cuStreamGetDevResource)(CUstream handle, CUdevResource* resource, CUdevResourceType type) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  return sim::get_resource(stream->context->device, sim::sms_of(stream->context), resource, type);
}

SIM_API(cuDevSmResourceSplitByCount)
(CUdevResource* result, unsigned* groups, const CUdevResource* input, CUdevResource* remainder,
 unsigned flags, unsigned min_count) {
  if (CUresult error = sim::check_sms(input)) return error;
  constexpr unsigned kFlags =
      CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
  const unsigned available = input->sm.smCount;
  if (groups == nullptr || (flags & ~kFlags) != 0 || min_count > available) return CUDA_ERROR_INVALID_VALUE;
  sim::Origin origin = sim::origin_of(*input);
  if (origin.is_group != 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  const bool loose = (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) != 0;
  const unsigned unit = loose ? 2 : sim::alignment(origin.device);
  const unsigned size = std::max(unit, (min_count + unit - 1) / unit * unit);
  const unsigned most = available / size;
  if (most == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  const unsigned made = result == nullptr ? most : std::min(*groups, most);
  *groups = made;
  if (result == nullptr) return CUDA_SUCCESS;
  origin.split = sim::next_split();
  origin.is_group = 1;
  for (unsigned i = 0; i < made; ++i) {
    result[i] = sim::sm_resource(origin, size, unit);
    origin.first_sm += size;
  }
  const unsigned rest = available - made * size;
  if (remainder != nullptr) {
    *remainder = CUdevResource{};
    if (rest != 0) *remainder = sim::sm_resource(origin, rest, unit);
  }
  return CUDA_SUCCESS;
}

SIM_API(cuDevSmResourceSplit)
(CUdevResource* result, unsigned groups, const CUdevResource* input, CUdevResource* remainder, unsigned flags,
 CU_DEV_SM_RESOURCE_GROUP_PARAMS* params) {
  if (CUresult error = sim::check_sms(input)) return error;
  if (groups == 0 || params == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  sim::Origin origin = sim::origin_of(*input);
  const unsigned usual = sim::alignment(origin.device);
  const unsigned largest_unit = usual == 8 ? 32 : 2;
  unsigned left = input->sm.smCount;
  origin.split = sim::next_split();
  origin.is_group = 0;
  for (unsigned i = 0; i < groups; ++i) {
    const unsigned unit = params[i].coscheduledSmCount != 0 ? params[i].coscheduledSmCount : usual;
    const bool fills_up = (params[i].flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL) != 0;
    if (unit % 2 != 0 || unit > largest_unit) return CUDA_ERROR_INVALID_VALUE;
    unsigned count = params[i].smCount;
    if (count == 0) count = fills_up ? left : left / unit * unit;
    if (count % 2 != 0 || (!fills_up && count % unit != 0)) return CUDA_ERROR_INVALID_VALUE;
    if (count > left || (result != nullptr && count < unit)) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    params[i].smCount = count;
    if (result != nullptr) {
      result[i] = sim::sm_resource(origin, count, unit);
      result[i].sm.flags = params[i].flags;
    }
    origin.first_sm += count;
    left -= count;
  }
  if (remainder != nullptr) {
    *remainder = CUdevResource{};
    if (left != 0) *remainder = sim::sm_resource(origin, left, 2);
  }
  return CUDA_SUCCESS;
}

SIM_API(cuDevResourceGenerateDesc)(CUdevResourceDesc* result, CUdevResource* resources, unsigned count) {
  if (CUresult error = sim::ready()) return error;
  if (result == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  CUdevResourceDesc_st desc{-1, 0, 0};
  const auto name_device = [&](CUdevice device) {
    if (desc.device >= 0 && desc.device != device) return false;
    desc.device = device;
    return true;
  };
  uint32_t split = 0;
  for (unsigned i = 0; i < count; ++i) {
    const CUdevResource& resource = resources[i];
    if (resource.type == CU_DEV_RESOURCE_TYPE_WORKQUEUE) continue;
    if (resource.type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG) {
      if (!name_device(resource.wqConfig.device)) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
      continue;
    }
    if (CUresult error = sim::check_sms(&resource)) return error;
    const sim::Origin origin = sim::origin_of(resource);
    const bool fits = desc.sm_count == 0 || (split != 0 && origin.split == split);
    if (!name_device(origin.device) || !fits) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    split = origin.split;
    desc.first_sm = desc.sm_count == 0 ? origin.first_sm : std::min(desc.first_sm, origin.first_sm);
    desc.sm_count += resource.sm.smCount;
  }
  if (!sim::valid_device(desc.device)) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  if (desc.sm_count == 0) desc.sm_count = sim::device_model(desc.device).sm_count;
  *result = new CUdevResourceDesc_st(desc);  // valid for the life of the process
  return CUDA_SUCCESS;
}

SIM_API(cuGreenCtxCreate)(CUgreenCtx* result, CUdevResourceDesc desc, CUdevice device, unsigned flags) {
  if (CUresult error = sim::check_device(device)) return error;
  if (result == nullptr || desc == nullptr || desc->device != device ||
      (flags & ~CU_GREEN_CTX_DEFAULT_STREAM) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  sim::Partition partition;
  if (CUresult error = sim::partition_of(*desc, &partition)) return error;
  const sim::Origin origin{sim::Origin::kMagic, device, desc->first_sm, 0, 0};
  auto green = std::make_unique<CUgreenCtx_st>();
  green->device = device;
  green->sms = sim::sm_resource(origin, desc->sm_count, sim::alignment(device));
  if (CUresult error = sim::create_green_context(device, green.get(), partition, &green->context))
    return error;
  *result = green.release();
  return CUDA_SUCCESS;
}

// The object stays, as the context's does: streams refer to it.
SIM_API(cuGreenCtxDestroy)(CUgreenCtx green) {
  if (CUresult error = sim::check_green(green)) return error;
  green->magic = 0;
  sim::destroy_green_context(green->context);
  return CUDA_SUCCESS;
}

SIM_API(cuCtxFromGreenCtx)(CUcontext* context, CUgreenCtx green) {
  if (CUresult error = sim::check_green(green)) return error;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = green->context;
  return CUDA_SUCCESS;
}

SIM_API(cuGreenCtxGetId)(CUgreenCtx green, unsigned long long* id) {
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (green == nullptr) {
    CUctx_st* current;
    if (CUresult error = sim::current_context(&current)) return error;
    green = current->green;
  }
  if (CUresult error = sim::check_green(green)) return error;
  *id = green->context->id;
  return CUDA_SUCCESS;
}

SIM_API(cuGreenCtxStreamCreate)(CUstream* stream, CUgreenCtx green, unsigned flags, int priority) {
  if (CUresult error = sim::check_green(green)) return error;
  if (stream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  if (!green->context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *stream = sim::make_stream(green->context, flags, std::clamp(priority, -5, 0));
  return CUDA_SUCCESS;
}

SIM_API(cuGreenCtxRecordEvent)(CUgreenCtx green, CUevent event) {
  if (CUresult error = sim::check_green(green)) return error;
  return sim::record_context(green->context, event);
}

SIM_API(cuGreenCtxWaitEvent)(CUgreenCtx green, CUevent event) {
  if (CUresult error = sim::check_green(green)) return error;
  return sim::await_in_context(green->context, event);
}

SIM_API(cuCtxRecordEvent)(CUcontext handle, CUevent event) {
  CUctx_st* context;
  if (CUresult error = sim::context_of(handle, &context)) return error;
  return sim::record_context(context, event);
}

SIM_API(cuCtxWaitEvent)(CUcontext handle, CUevent event) {
  CUctx_st* context;
  if (CUresult error = sim::context_of(handle, &context)) return error;
  return sim::await_in_context(context, event);
}
