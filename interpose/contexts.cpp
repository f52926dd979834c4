// SPDX-License-Identifier: Apache-2.0
//
// Contexts. The first one of a process on a GPU is charged before the driver makes it, with what a context
// was found to take; the broker replaces that by what it measures. The end of a context ends what was
// allocated in it.
#include "interpose/contexts.h"

#include "interpose/allocations.h"
#include "interpose/gate.h"
#include "interpose/quota.h"
#include "limiter/address_table.h"

namespace hook {
namespace {

constexpr int kDevices = 128;  // primary contexts of further devices are not counted; no machine has so many

// The primary context of a device while it is active, nullptr while not.
constinit std::atomic<CUcontext> primary_contexts[kDevices] = {};
// How many contexts of ours live on a GPU of a slice.
constinit std::atomic<int> context_counts[kMaxSlices][shm::kMaxGpus] = {};
// Those that cuCtxCreate made: context -> number of its GPU.
constinit limiter::AddressTable created_contexts;

int slice_number(const SliceGpu& gpu) { return static_cast<int>(gpu.slice - session().slices); }

std::atomic<int>& count_on(const SliceGpu& gpu) { return context_counts[slice_number(gpu)][gpu.index]; }

uint64_t gpu_number(const SliceGpu& gpu) {
  return static_cast<uint64_t>(slice_number(gpu)) * shm::kMaxGpus + static_cast<uint64_t>(gpu.index);
}
SliceGpu gpu_of_number(uint64_t number) {
  return {&session().slices[number / shm::kMaxGpus], static_cast<int>(number % shm::kMaxGpus)};
}

void began(const SliceGpu& gpu) {
  count_on(gpu).fetch_add(1, std::memory_order_relaxed);
  gate::contexts_changed(*gpu.slice, 1);
}

void give_context_if_none(const InFlight& call) {
  if (count_on(call.gpu()).load(std::memory_order_relaxed) == 0) give_context(call);
}

// Makes a context by the driver's `call`. Not in flight any more when it returns: the caller rings the
// broker, which has to find the context measurable.
template <typename Call>
CUresult charged_context(const char* function, const SliceGpu& gpu, Call call) {
  InFlight in_flight(gpu);
  if (const CUresult refused = take_context(function, in_flight); refused != CUDA_SUCCESS) return refused;
  const uint64_t bytes = gpu.slice->limits->gpus[gpu.index].context_bytes.load(std::memory_order_relaxed);
  const CUresult result = ask_driver(function, in_flight, bytes, call);
  if (result != CUDA_SUCCESS) give_context_if_none(in_flight);
  return result;
}

// Preconditions: the driver has ended the context since the call is in flight. The caller rings when it is
// not any more.
void ended(const InFlight& call, CUcontext context) {
  context_is_gone(call, context);
  count_on(call.gpu()).fetch_sub(1, std::memory_order_relaxed);
  settle_pools(call);
  give_context_if_none(call);
}

template <typename Call>
CUresult created(const char* function, CUcontext* context, CUdevice device, Call call) {
  SliceGpu gpu;
  const Standing standing = standing_on_device(device, &gpu);
  if (const CUresult refused = barred(standing, device); refused != CUDA_SUCCESS) return refused;
  if (standing == Standing::kUnlimited || context == nullptr) return call();
  const CUresult result = charged_context(function, gpu, call);
  if (result != CUDA_SUCCESS) return result;
  began(gpu);
  // Without a record its end is not noticed; the broker notices by the driver's figure.
  created_contexts.insert(reinterpret_cast<uint64_t>(*context), gpu_number(gpu));
  return result;
}

template <typename Call>
CUresult destroyed(CUcontext context, Call call) {
  uint64_t number;
  const auto key = reinterpret_cast<uint64_t>(context);
  if (context == nullptr || !created_contexts.take(key, &number)) return call();
  gate::context_closing(context);
  const SliceGpu gpu = gpu_of_number(number);
  CUresult result;
  {
    const InFlight in_flight(gpu);
    result = call();
    if (result == CUDA_SUCCESS) ended(in_flight, context);
  }
  if (result == CUDA_SUCCESS) {
    gate::contexts_changed(*gpu.slice, -1);
  } else {
    created_contexts.insert(key, number);
  }
  return result;
}

std::atomic<CUcontext>* primary_of(CUdevice device) {
  return device >= 0 && device < kDevices ? &primary_contexts[device] : nullptr;
}

// After a call that may have ended the primary context of a device.
template <typename Call>
CUresult may_end_primary(CUdevice device, Call call) {
  std::atomic<CUcontext>* primary = primary_of(device);
  CUcontext context = primary != nullptr ? primary->load(std::memory_order_acquire) : nullptr;
  if (context == nullptr) return call();
  gate::context_closing(context);
  SliceGpu gpu;
  const bool limited = standing_on_device(device, &gpu) == Standing::kLimited;
  CUresult result;
  bool has_ended = false;
  {
    const InFlight in_flight(gpu);
    result = call();
    unsigned int flags;
    int active = 1;
    if (result == CUDA_SUCCESS) real<fn::cuDevicePrimaryCtxGetState>(device, &flags, &active);
    has_ended = limited && active == 0 &&
                primary->compare_exchange_strong(context, nullptr, std::memory_order_acq_rel);
    if (has_ended) ended(in_flight, context);
  }
  if (has_ended) gate::contexts_changed(*gpu.slice, -1);
  return result;
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) noexcept {
  const auto call = [=] { return real<fn::cuDevicePrimaryCtxRetain>(pctx, dev); };
  SliceGpu gpu;
  const Standing standing = standing_on_device(dev, &gpu);
  if (const CUresult refused = barred(standing, dev); refused != CUDA_SUCCESS) return refused;
  std::atomic<CUcontext>* primary = primary_of(dev);
  if (standing == Standing::kUnlimited || pctx == nullptr || primary == nullptr) return call();
  if (primary->load(std::memory_order_acquire) != nullptr) return call();
  const CUresult result = charged_context("cuDevicePrimaryCtxRetain", gpu, call);
  CUcontext inactive = nullptr;
  if (result == CUDA_SUCCESS &&
      primary->compare_exchange_strong(inactive, *pctx, std::memory_order_acq_rel)) {
    began(gpu);
  }
  return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) noexcept {
  return may_end_primary(dev, [=] { return real<fn::cuDevicePrimaryCtxRelease>(dev); });
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) noexcept {
  return may_end_primary(dev, [=] { return real<fn::cuDevicePrimaryCtxRelease_v2>(dev); });
}
CUresult cuDevicePrimaryCtxReset(CUdevice dev) noexcept {
  return may_end_primary(dev, [=] { return real<fn::cuDevicePrimaryCtxReset>(dev); });
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) noexcept {
  return may_end_primary(dev, [=] { return real<fn::cuDevicePrimaryCtxReset_v2>(dev); });
}

CUresult cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) noexcept {
  return created("cuCtxCreate", pctx, dev, [=] { return real<fn::cuCtxCreate>(pctx, flags, dev); });
}
CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) noexcept {
  return created("cuCtxCreate", pctx, dev, [=] { return real<fn::cuCtxCreate_v2>(pctx, flags, dev); });
}
CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams, unsigned int flags,
                        CUdevice dev) noexcept {
  return created("cuCtxCreate", pctx, dev,
                 [=] { return real<fn::cuCtxCreate_v3>(pctx, paramsArray, numParams, flags, dev); });
}
CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                        CUdevice dev) noexcept {
  return created("cuCtxCreate", pctx, dev,
                 [=] { return real<fn::cuCtxCreate_v4>(pctx, ctxCreateParams, flags, dev); });
}

// Not counted: what it takes beside the context that it is part of, the broker finds as overhead.
CUresult cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags) noexcept {
  SliceGpu gpu;
  const CUresult refused = barred(standing_on_device(dev, &gpu), dev);
  return refused != CUDA_SUCCESS ? refused : real<fn::cuGreenCtxCreate>(phCtx, desc, dev, flags);
}

CUresult cuCtxDestroy(CUcontext ctx) noexcept {
  return destroyed(ctx, [=] { return real<fn::cuCtxDestroy>(ctx); });
}
CUresult cuCtxDestroy_v2(CUcontext ctx) noexcept {
  return destroyed(ctx, [=] { return real<fn::cuCtxDestroy_v2>(ctx); });
}
// cuCtxAttach is not followed, so a detach counts as the end of the context.
CUresult cuCtxDetach(CUcontext ctx) noexcept {
  return destroyed(ctx, [=] { return real<fn::cuCtxDetach>(ctx); });
}

void forget_contexts() {
  for (auto& primary : primary_contexts) primary.store(nullptr, std::memory_order_relaxed);
  for (auto& slice : context_counts) {
    for (auto& count : slice) count.store(0, std::memory_order_relaxed);
  }
  created_contexts.forget();
}

}  // namespace hook
