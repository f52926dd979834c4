// SPDX-License-Identifier: Apache-2.0
//
// Asks the slice for memory before the driver is asked, and gives it back. No lock is held across a driver
// call.
#pragma once

#include "interpose/driver.h"
#include "interpose/session.h"

namespace hook {

// What the driver takes for an allocation of n bytes: small ones share a 2 MiB granule, larger ones are whole
// granules.
constexpr uint64_t kSmallBytes = uint64_t{1} << 20;
constexpr uint64_t kSmallGranule = 512;
constexpr uint64_t kGranule = uint64_t{2} << 20;
constexpr uint64_t rounded_up(uint64_t bytes, uint64_t granule) {
  if (bytes > shm::kLedgerBytesMask) return bytes;  // refused whatever the quota is
  return (bytes + granule - 1) & ~(granule - 1);
}
constexpr uint64_t whole_granules(uint64_t bytes) { return rounded_up(bytes, kGranule); }
constexpr uint64_t granules(uint64_t bytes) {
  return bytes <= kSmallBytes ? rounded_up(bytes, kSmallGranule) : whole_granules(bytes);
}

// Its share of what a granule cannot hold for small ones of this size: three of 600 KiB leave 248 KiB.
// Preconditions: `bytes` is a result of granules().
constexpr uint64_t waste_of(uint64_t bytes) {
  if (bytes > kSmallBytes || (bytes & (bytes - 1)) == 0) return 0;
  const uint64_t per_granule = kGranule / bytes;
  return (kGranule - per_granule * bytes) / per_granule;
}

// What a call of this thread may take.
enum class Standing : uint8_t {
  kUnlimited,  // no slice; or none of this GPU, which a container lets in: to the driver as it came
  kLimited,
  kOffLimits,  // of a GPU that is in none of the slices: CUDA_ERROR_DEVICE_UNAVAILABLE
  kClosed,     // the driver was never initialised: CUDA_ERROR_NOT_INITIALIZED
};
// On the GPU of the current context. Without a context it is kUnlimited: the driver has the right error for
// that.
Standing standing_in_context(SliceGpu* gpu);
Standing standing_on_device(int device, SliceGpu* gpu);
// What a call that takes something is answered without asking the driver; CUDA_SUCCESS: it may go on. The
// first time that a GPU is off limits stderr is told, by the device's number or that of the current context.
constexpr int kOfCurrentContext = -1;
CUresult barred(Standing standing, int device = kOfCurrentContext);

// A call of this thread that may change what the process holds on a GPU; for none (in no slice) it does
// nothing. It lives from before the first change of the ledger until the driver has answered and the ledger
// says what it did: until then the broker does not compare the two. Whatever touches the ledger has to be
// shown one.
class InFlight {
 public:
  explicit InFlight(const SliceGpu& gpu) : gpu_(gpu) { begin(); }
  ~InFlight() { end(); }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  const SliceGpu& gpu() const { return gpu_; }

 private:
  friend class Landed;
  void begin() {
    if (gpu_) limiter::begin_call(*gpu_.slice->state, gpu_.index, gpu_.slice->slot);
  }
  void end() {
    if (gpu_) limiter::end_call(*gpu_.slice->state, gpu_.index, gpu_.slice->slot);
  }

  SliceGpu gpu_;
};

// The same on every GPU of the process's slices, for a call that tells only afterwards which it concerned.
class InFlightOnAll {
 public:
  InFlightOnAll();
  ~InFlightOnAll();
  InFlightOnAll(const InFlightOnAll&) = delete;
  InFlightOnAll& operator=(const InFlightOnAll&) = delete;
};

// CUDA_SUCCESS, and `bytes` are charged; or CUDA_ERROR_OUT_OF_MEMORY after this process's reservoirs were
// trimmed, and the refusal is in the slice's log. `function` is the driver's name of what was called.
// May wait for the broker, and the call is not in flight meanwhile.
// Preconditions: the ledger and the driver agree about all that this call did so far.
CUresult take(const char* function, InFlight& call, uint64_t bytes);
// The same for what the driver is about to take unasked: a first context, or `bytes` more than it has;
// charged until the broker has measured it.
CUresult take_context(const char* function, InFlight& call);
CUresult take_overhead(const char* function, InFlight& call, uint64_t bytes);
// For a call that may make the driver take memory, how much only it knows: charged with a granule, as take(),
// until the broker has measured it; ask_to_measure() when it is done. give_unknown() is for one that failed,
// and for the call that ends it.
CUresult take_unknown(const char* function, InFlight& call);
void give_unknown(const InFlight& call);
// An allocation of its own: what small ones waste is charged with them until it is measured.
CUresult take_with_waste(const char* function, InFlight& call, uint64_t bytes);
void give_back_with_waste(const InFlight& call, uint64_t bytes);
// As take(), but neither waits nor reports: for whoever has another way, or is in the middle of something.
bool try_take(const InFlight& call, uint64_t bytes);
bool try_take_or_trim(const InFlight& call, uint64_t bytes);
void give_back(const InFlight& call, uint64_t bytes);
// Gives back what the driver did not take of it.
void cancel(const InFlight& call, uint64_t bytes);
void give_context(const InFlight& call);
void give_overhead(const InFlight& call, uint64_t bytes);
// Has the broker look at what the driver takes. Not in flight.
void ask_to_measure(const SliceGpu& gpu);
// Before a process's first reservoir on a GPU: reservoirs blur what its context takes, so that is measured
// first where it can be. At most a fraction of a second, once.
void await_first_measurement(InFlight& call);
// After a context was made: where it is charged with a guess, because it is the first ever on that GPU, the
// same, so that no program sees memory become free that it never freed.
void await_context_measurement(const SliceGpu& gpu);
// Marks `delta_bytes` of what is charged as managed memory, or as memory of reservoirs.
void add_managed(const InFlight& call, int64_t delta_bytes);
void add_pooled(const InFlight& call, int64_t delta_bytes);

// Calls the driver for memory that was taken. If it has none, what this process's reservoirs don't use is
// given to it and it is asked once more; a refusal is counted as the GPU's.
template <typename Call>
CUresult ask_driver(const char* function, const InFlight& in_flight, uint64_t bytes, Call call);

// The refusals of this process: each goes to the slice's log, the first to stderr too.
void report_refusal(const char* function, const SliceGpu& gpu, uint64_t bytes);
// The same for a GPU that is off limits; goes to stderr once, and to no slice.
void report_off_limits(int device);
void report_full_gpu(const char* function, const SliceGpu& gpu, uint64_t bytes);

// Gives back to the driver and to the slice what the reservoirs of the GPU (reservoirs.h) don't use. How many
// bytes that brought the slice.
uint64_t trim_reservoirs(const InFlight& call);

// In a forked child, before its own attach: all that is known about memory and contexts is the parent's.
void forget_memory();

template <typename Call>
CUresult ask_driver(const char* function, const InFlight& in_flight, uint64_t bytes, Call call) {
  CUresult result = call();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && trim_reservoirs(in_flight) != 0) result = call();
  if (result == CUDA_ERROR_OUT_OF_MEMORY) report_full_gpu(function, in_flight.gpu(), bytes);
  return result;
}

}  // namespace hook
