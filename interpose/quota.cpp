// SPDX-License-Identifier: Apache-2.0
#include "interpose/quota.h"

#include "interpose/allocations.h"
#include "interpose/contexts.h"
#include "interpose/graph_memory.h"
#include "interpose/reservoirs.h"
#include "interpose/syscalls.h"
#include "interpose/vmm.h"

namespace hook {
namespace {

bool quarantined(const SliceGpu& gpu) {
  return (gpu.slice->limits->header.flags.load(std::memory_order_relaxed) & shm::kQuarantined) != 0;
}

constexpr uint64_t kMeasureDeadlineNs = 200'000'000;
constexpr uint64_t kMeasureNapNs = 1'000'000;

// The end of the last wait for a broker's measurement. A broker that did not answer one is not waited for
// again soon.
constinit std::atomic<uint64_t> waited_until_ns{0};
constexpr uint64_t kWaitAgainNs = 10'000'000'000;

// Calls whose taking only the driver knows are made on trust, a few of them, while the slice has this much
// left.
constexpr uint64_t kPlentyBytes = uint64_t{256} << 20;
constexpr uint32_t kTrustedCalls = 4;
constinit std::atomic<uint32_t> unmeasured_calls{0};

bool any_floor(const SliceGpu& gpu) {
  const shm::State& state = *gpu.slice->state;
  uint32_t slots = state.header.slots_high.load(std::memory_order_relaxed);
  if (slots > shm::kMaxSlots) slots = shm::kMaxSlots;
  for (uint32_t slot = 0; slot < slots; slot++) {
    if (limiter::slot_use(state, gpu.index, slot).floor_bytes != 0) return true;
  }
  return false;
}

}  // namespace

// Not in flight for a while.
class Landed {
 public:
  explicit Landed(InFlight& call) : call_(call) { call_.end(); }
  ~Landed() { call_.begin(); }
  Landed(const Landed&) = delete;
  Landed& operator=(const Landed&) = delete;

 private:
  InFlight& call_;
};

namespace {

bool own_floor(const SliceGpu& gpu) {
  return limiter::slot_use(*gpu.slice->state, gpu.index, gpu.slice->slot.slot).floor_bytes != 0;
}

bool has_broker(const SliceGpu& gpu) {
  const shm::SlotRecord& record = gpu.slice->limits->slots[gpu.slice->slot.slot];
  return record.host_pid.load(std::memory_order_relaxed) != 0 &&
         record.generation.load(std::memory_order_relaxed) == gpu.slice->slot.generation;
}

// A context that was just made is charged with a guess until the broker has measured it, for which the
// process must hold still a moment. Before anything is refused on a guess, that moment is granted, while
// there is one. True: a guess has been replaced.
template <typename Guess>
bool wait_for_measurement(const SliceGpu& gpu, Guess is_guess) {
  if (!is_guess(gpu) || !has_broker(gpu)) return false;
  const uint64_t started_ns = now_ns();
  if (started_ns < waited_until_ns.load(std::memory_order_relaxed)) return false;
  ask_to_measure(gpu);
  do {
    sleep_ns(kMeasureNapNs);
    if (!is_guess(gpu)) return true;
  } while (now_ns() - started_ns < kMeasureDeadlineNs);
  waited_until_ns.store(now_ns() + kWaitAgainNs, std::memory_order_relaxed);
  return false;
}

template <typename Guess>
bool wait_for_measurement(InFlight& call, Guess is_guess) {
  if (!is_guess(call.gpu())) return false;
  const Landed landed(call);
  return wait_for_measurement(call.gpu(), is_guess);
}

template <typename Reserve>
CUresult take_by(const char* function, InFlight& call, uint64_t bytes, Reserve reserve) {
  const SliceGpu& gpu = call.gpu();
  if (quarantined(gpu)) [[unlikely]] {
    report_refusal(function, gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (reserve() == limiter::Reservation::kGranted) [[likely]]
    return CUDA_SUCCESS;
  if (trim_reservoirs(call) != 0 && reserve() == limiter::Reservation::kGranted) return CUDA_SUCCESS;
  if (wait_for_measurement(call, any_floor) && reserve() == limiter::Reservation::kGranted)
    return CUDA_SUCCESS;
  report_refusal(function, gpu, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

Standing standing_on_device(int device, SliceGpu* gpu) {
  const Membership member = membership();
  if (member == Membership::kClosed) return Standing::kClosed;
  if (member == Membership::kTransparent) return Standing::kUnlimited;
  *gpu = gpu_of_device(device);
  if (*gpu) return Standing::kLimited;
  return is_off_limits(device) ? Standing::kOffLimits : Standing::kUnlimited;
}

Standing standing_in_context(SliceGpu* gpu) {
  const Membership member = membership();
  if (member == Membership::kClosed) return Standing::kClosed;
  CUdevice device;
  if (member == Membership::kTransparent || real<fn::cuCtxGetDevice>(&device) != CUDA_SUCCESS)
    return Standing::kUnlimited;
  return standing_on_device(device, gpu);
}

CUresult barred(Standing standing, int device) {
  if (standing == Standing::kClosed) return CUDA_ERROR_NOT_INITIALIZED;
  if (standing != Standing::kOffLimits) return CUDA_SUCCESS;
  if (device != kOfCurrentContext || real<fn::cuCtxGetDevice>(&device) == CUDA_SUCCESS) {
    report_off_limits(device);
  }
  return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

InFlightOnAll::InFlightOnAll() {
  for (int i = 0; i < session().slice_count; i++) {
    const AttachedSlice& slice = session().slices[i];
    for (int gpu = 0; gpu < slice.gpu_count; gpu++) limiter::begin_call(*slice.state, gpu, slice.slot);
  }
}

InFlightOnAll::~InFlightOnAll() {
  for (int i = 0; i < session().slice_count; i++) {
    const AttachedSlice& slice = session().slices[i];
    for (int gpu = 0; gpu < slice.gpu_count; gpu++) limiter::end_call(*slice.state, gpu, slice.slot);
  }
}

CUresult take(const char* function, InFlight& call, uint64_t bytes) {
  const SliceGpu& gpu = call.gpu();
  return take_by(function, call, bytes, [&] {
    return limiter::reserve(*gpu.slice->limits, *gpu.slice->state, gpu.index, gpu.slice->slot, bytes);
  });
}

CUresult take_context(const char* function, InFlight& call) {
  const SliceGpu& gpu = call.gpu();
  const uint64_t bytes = gpu.slice->limits->gpus[gpu.index].context_bytes.load(std::memory_order_relaxed);
  return take_by(function, call, bytes, [&] {
    return limiter::reserve_context(*gpu.slice->limits, *gpu.slice->state, gpu.index, gpu.slice->slot);
  });
}

CUresult take_overhead(const char* function, InFlight& call, uint64_t bytes) {
  const SliceGpu& gpu = call.gpu();
  return take_by(function, call, bytes, [&] {
    return limiter::reserve_overhead(*gpu.slice->limits, *gpu.slice->state, gpu.index, gpu.slice->slot,
                                     bytes);
  });
}

CUresult take_unknown(const char* function, InFlight& call) {
  const SliceGpu& gpu = call.gpu();
  const auto free_bytes = [&] {
    return limiter::usage(*gpu.slice->limits, *gpu.slice->state, gpu.index).free_bytes();
  };
  if (!has_broker(gpu)) {
    return take_by(function, call, kGranule, [&] {
      return free_bytes() >= kGranule ? limiter::Reservation::kGranted : limiter::Reservation::kRefused;
    });
  }
  if (!own_floor(gpu)) unmeasured_calls.store(0, std::memory_order_relaxed);
  const bool is_trusted = unmeasured_calls.load(std::memory_order_relaxed) < kTrustedCalls;
  if ((!is_trusted || free_bytes() < kPlentyBytes) && wait_for_measurement(call, own_floor))
    unmeasured_calls.store(0, std::memory_order_relaxed);
  unmeasured_calls.fetch_add(1, std::memory_order_relaxed);
  return take_overhead(function, call, kGranule);
}

void give_unknown(const InFlight& call) {
  if (has_broker(call.gpu())) give_overhead(call, kGranule);
}

bool try_take(const InFlight& call, uint64_t bytes) {
  const SliceGpu& gpu = call.gpu();
  return !quarantined(gpu) && limiter::reserve(*gpu.slice->limits, *gpu.slice->state, gpu.index,
                                               gpu.slice->slot, bytes) == limiter::Reservation::kGranted;
}

bool try_take_or_trim(const InFlight& call, uint64_t bytes) {
  return try_take(call, bytes) || (trim_reservoirs(call) != 0 && try_take(call, bytes));
}

void give_back(const InFlight& call, uint64_t bytes) {
  const SliceGpu& gpu = call.gpu();
  limiter::release(*gpu.slice->state, gpu.index, gpu.slice->slot, bytes);
}

CUresult take_with_waste(const char* function, InFlight& call, uint64_t bytes) {
  const uint64_t waste = waste_of(bytes);
  if (waste == 0) [[likely]]
    return take(function, call, bytes);
  if (const CUresult refused = take_overhead(function, call, waste); refused != CUDA_SUCCESS) return refused;
  const CUresult result = take(function, call, bytes);
  if (result != CUDA_SUCCESS) give_overhead(call, waste);
  return result;
}

void give_back_with_waste(const InFlight& call, uint64_t bytes) {
  give_back(call, bytes);
  if (const uint64_t waste = waste_of(bytes); waste != 0) give_overhead(call, waste);
}

void cancel(const InFlight& call, uint64_t bytes) {
  const SliceGpu& gpu = call.gpu();
  limiter::cancel(*gpu.slice->state, gpu.index, gpu.slice->slot, bytes);
}

void give_context(const InFlight& call) {
  const SliceGpu& gpu = call.gpu();
  limiter::give_context(*gpu.slice->state, gpu.index, gpu.slice->slot);
}

void give_overhead(const InFlight& call, uint64_t bytes) {
  const SliceGpu& gpu = call.gpu();
  limiter::give_overhead(*gpu.slice->state, gpu.index, gpu.slice->slot, bytes);
}

void ask_to_measure(const SliceGpu& gpu) {
  shm::Doorbell& doorbell = gpu.slice->state->doorbell;
  doorbell.measure_requests.fetch_add(1, std::memory_order_relaxed);
  doorbell.rings.fetch_add(1, std::memory_order_release);
  futex_wake(&doorbell.rings, 1, true);
}

void await_first_measurement(InFlight& call) {
  const SliceGpu& gpu = call.gpu();
  const limiter::SlotUse use = limiter::slot_use(*gpu.slice->state, gpu.index, gpu.slice->slot.slot);
  if (use.floor_bytes != 0 && use.pooled_bytes == 0) wait_for_measurement(call, own_floor);
}

void await_context_measurement(const SliceGpu& gpu) {
  const uint64_t context_bytes =
      gpu.slice->limits->gpus[gpu.index].context_bytes.load(std::memory_order_relaxed);
  if (context_bytes == shm::kGuessedContextBytes) wait_for_measurement(gpu, own_floor);
}

void add_managed(const InFlight& call, int64_t delta_bytes) {
  const SliceGpu& gpu = call.gpu();
  limiter::add_managed(*gpu.slice->state, gpu.index, gpu.slice->slot, delta_bytes);
}

void add_pooled(const InFlight& call, int64_t delta_bytes) {
  const SliceGpu& gpu = call.gpu();
  limiter::add_pooled(*gpu.slice->state, gpu.index, gpu.slice->slot, delta_bytes);
}

void forget_memory() {
  forget_allocations();
  forget_reservoirs();
  forget_graphs();
  forget_physical_memory();
  forget_contexts();
}

}  // namespace hook
