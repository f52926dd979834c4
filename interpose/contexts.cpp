// SPDX-License-Identifier: Apache-2.0
//
// Contexts. Each is charged before the driver makes it, with what a context was found to take on that GPU;
// the broker replaces that by what it measures. The end of a context ends what was allocated in it.
#include "interpose/contexts.h"

#include "interpose/allocations.h"
#include "interpose/futex_lock.h"
#include "interpose/gate.h"
#include "interpose/quota.h"
#include "interpose/reservoirs.h"
#include "limiter/address_table.h"

namespace hook {
namespace {

constexpr int kDevices = 128;  // primary contexts of further devices are not counted; no machine has so many

// The primary context of a device while it is active, nullptr while not.
constinit std::atomic<CUcontext> primary_contexts[kDevices] = {};
// Held across the driver's call that makes a primary context, which makes other callers wait as well: threads
// that start together charge it once.
constinit gate::FutexLock primary_locks[kDevices];
// How many contexts of ours live on a GPU of a slice.
constinit std::atomic<int> context_counts[kMaxSlices][shm::kMaxGpus] = {};
// Those that cuCtxCreate made: context -> number of its GPU.
constinit limiter::AddressTable created_contexts;
// Green contexts -> device.
constinit limiter::AddressTable green_contexts;

int slice_number(const SliceGpu& gpu) { return static_cast<int>(gpu.slice - session().slices); }

std::atomic<int>& count_on(const SliceGpu& gpu) { return context_counts[slice_number(gpu)][gpu.index]; }

uint64_t gpu_number(const SliceGpu& gpu) {
  return static_cast<uint64_t>(slice_number(gpu)) * shm::kMaxGpus + static_cast<uint64_t>(gpu.index);
}
SliceGpu gpu_of_number(uint64_t number) {
  return {&session().slices[number / shm::kMaxGpus], static_cast<int>(number % shm::kMaxGpus)};
}

// What the next context of this process is expected to take; less if it is the first one and something is
// charged for one already.
uint64_t context_bytes(const SliceGpu& gpu) {
  return gpu.slice->limits->gpus[gpu.index].context_bytes.load(std::memory_order_relaxed);
}

// A context is counted before it is charged, so that of two that are made at once one is not the first.
CUresult count_context(const char* function, InFlight& call) {
  const bool is_first = count_on(call.gpu()).fetch_add(1, std::memory_order_relaxed) == 0;
  const CUresult result =
      is_first ? take_context(function, call) : take_overhead(function, call, context_bytes(call.gpu()));
  if (result != CUDA_SUCCESS) count_on(call.gpu()).fetch_sub(1, std::memory_order_relaxed);
  return result;
}

void uncount_context(const InFlight& call) {
  if (count_on(call.gpu()).fetch_sub(1, std::memory_order_relaxed) == 1) {
    give_context(call);
  } else {
    give_overhead(call, context_bytes(call.gpu()));
  }
}

// Makes a context by the driver's `call`. Not in flight any more when it returns: the caller rings the
// broker, which has to find the context measurable.
template <typename Call>
CUresult charged_context(const char* function, const SliceGpu& gpu, Call call) {
  InFlight in_flight(gpu);
  if (const CUresult refused = count_context(function, in_flight); refused != CUDA_SUCCESS) return refused;
  const CUresult result = ask_driver(function, in_flight, context_bytes(gpu), call);
  if (result != CUDA_SUCCESS) uncount_context(in_flight);
  settle_reservoirs(in_flight);
  return result;
}

// Preconditions: the driver has ended the context since the call is in flight. The caller rings when it is
// not any more.
void ended(const InFlight& call, CUcontext context) {
  context_is_gone(call, context);
  settle_reservoirs(call);
  uncount_context(call);
}

template <typename Call>
CUresult created(const char* function, CUcontext* context, CUdevice device, Call call) {
  SliceGpu gpu;
  const Standing standing = standing_on_device(device, &gpu);
  if (const CUresult refused = barred(standing, device); refused != CUDA_SUCCESS) return refused;
  if (standing == Standing::kUnlimited || context == nullptr) return call();
  const CUresult result = charged_context(function, gpu, call);
  if (result != CUDA_SUCCESS) return result;
  gate::contexts_changed(*gpu.slice, 1);
  // Without a record its end is not noticed; the broker notices by the driver's figure.
  created_contexts.insert(reinterpret_cast<uint64_t>(*context), gpu_number(gpu));
  await_context_measurement(gpu);
  return result;
}

template <typename Call>
CUresult destroyed(CUcontext context, Call call) {
  uint64_t number;
  const auto key = reinterpret_cast<uint64_t>(context);
  if (context == nullptr) return call();
  gate::context_closing(context);
  if (!created_contexts.take(key, &number)) return call();
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

// After a call that has made the primary context, charged.
void primary_began(std::atomic<CUcontext>* primary, CUcontext context, const SliceGpu& gpu) {
  if (context != nullptr) {
    primary->store(context, std::memory_order_release);
    gate::contexts_changed(*gpu.slice, 1);
    await_context_measurement(gpu);
  } else {
    uncount_context(InFlight(gpu));
  }
}

// The primary context that a new green context has made. nullptr: the driver would not say.
CUcontext primary_of_green(CUdevice device) {
  CUcontext context = nullptr;
  if (real<fn::cuDevicePrimaryCtxRetain>(&context, device) != CUDA_SUCCESS) return nullptr;
  real<fn::cuDevicePrimaryCtxRelease_v2>(device);
  return context;
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
  const gate::Locked locked(primary_locks[dev]);
  if (primary->load(std::memory_order_acquire) != nullptr) return call();
  const CUresult result = charged_context("cuDevicePrimaryCtxRetain", gpu, call);
  if (result == CUDA_SUCCESS) primary_began(primary, *pctx, gpu);
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

// A green context is a part of its device's primary context and keeps that alive; it may be the first to need
// it. What it takes beside that only the driver knows.
CUresult cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags) noexcept {
  const auto call = [=] { return real<fn::cuGreenCtxCreate>(phCtx, desc, dev, flags); };
  SliceGpu gpu;
  const Standing standing = standing_on_device(dev, &gpu);
  if (const CUresult refused = barred(standing, dev); refused != CUDA_SUCCESS) return refused;
  std::atomic<CUcontext>* primary = primary_of(dev);
  if (standing == Standing::kUnlimited || phCtx == nullptr || primary == nullptr) return call();
  const gate::Locked locked(primary_locks[dev]);
  CUresult result;
  if (primary->load(std::memory_order_acquire) == nullptr) {
    result = charged_context("cuGreenCtxCreate", gpu, call);
    if (result == CUDA_SUCCESS) primary_began(primary, primary_of_green(dev), gpu);
  } else {
    InFlight in_flight(gpu);
    if (const CUresult refused = take_unknown("cuGreenCtxCreate", in_flight); refused != CUDA_SUCCESS)
      return refused;
    result = ask_driver("cuGreenCtxCreate", in_flight, kGranule, call);
    if (result != CUDA_SUCCESS) give_unknown(in_flight);
    settle_reservoirs(in_flight);
  }
  if (result != CUDA_SUCCESS) return result;
  green_contexts.insert(reinterpret_cast<uint64_t>(*phCtx), static_cast<uint64_t>(dev));
  ask_to_measure(gpu);
  return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) noexcept {
  const auto call = [=] { return real<fn::cuGreenCtxDestroy>(hCtx); };
  uint64_t device;
  const auto key = reinterpret_cast<uint64_t>(hCtx);
  if (hCtx == nullptr || !green_contexts.take(key, &device)) return call();
  // As a context it has a handle of its own.
  CUcontext converted = nullptr;
  if (real<fn::cuCtxFromGreenCtx>(&converted, hCtx) == CUDA_SUCCESS) {
    gate::context_closing(converted);
    belongs_to_nobody(converted);
  }
  const CUresult result = may_end_primary(static_cast<CUdevice>(device), call);
  if (result != CUDA_SUCCESS) {
    green_contexts.insert(key, device);
    return result;
  }
  if (const SliceGpu gpu = gpu_of_device(static_cast<CUdevice>(device))) {
    {
      const InFlight in_flight(gpu);
      give_unknown(in_flight);
      settle_reservoirs(in_flight);
    }
    ask_to_measure(gpu);
  }
  return result;
}

// Memory that is allocated there is the primary context's.
CUresult cuCtxFromGreenCtx(CUcontext* pContext, CUgreenCtx hCtx) noexcept {
  const CUresult result = real<fn::cuCtxFromGreenCtx>(pContext, hCtx);
  uint64_t device;
  if (result != CUDA_SUCCESS || !green_contexts.find(reinterpret_cast<uint64_t>(hCtx), &device))
    return result;
  if (CUcontext primary = primary_contexts[device].load(std::memory_order_acquire)) {
    belongs_to(*pContext, primary);
  }
  return result;
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
  for (gate::FutexLock& lock : primary_locks) lock.reset();
  for (auto& slice : context_counts) {
    for (auto& count : slice) count.store(0, std::memory_order_relaxed);
  }
  created_contexts.forget();
  green_contexts.forget();
}

}  // namespace hook
