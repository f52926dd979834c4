// SPDX-License-Identifier: Apache-2.0
//
// What the driver keeps for this process and lends out: pools, and each device's memory for graphs. What
// counts is what a reservoir has taken from the GPU, not what it has lent: freed memory stays in it. So a
// call that may make one grow is charged with the most that it may grow by, and the charge is set to what the
// reservoir really holds as soon as the driver has answered.
//
// A reservoir that the driver made grow by more than anybody could foresee, and more than the slice has,
// stays covered in part; the broker finds the rest as overhead.
#pragma once

#include "interpose/locations.h"
#include "interpose/quota.h"

namespace hook {

// The name of a reservoir: a pool's handle, which is the address of an object, or a device's number
// marked by kGraphMemory.
constexpr uint64_t kGraphMemory = uint64_t{1} << 63;  // no object is there
inline uint64_t pool_key(CUmemoryPool pool) { return reinterpret_cast<uint64_t>(pool); }
constexpr uint64_t graph_memory_key(CUdevice device) { return static_cast<uint64_t>(device) | kGraphMemory; }

struct Reservoir {
  int device;    // that its memory is on, or kNoDevice
  bool managed;  // the driver does not list it under the process
};

// From now on the reservoir is charged to the slice of its device, if it has one. false: no host memory to
// remember it, it is not charged; the broker finds it as overhead.
bool remember_reservoir(uint64_t key, const Reservoir& reservoir);
bool find_reservoir(uint64_t key, Reservoir* reservoir);

struct ReservoirUse {
  uint64_t reserved_bytes;
  uint64_t used_bytes;
  uint64_t unused_bytes() const { return reserved_bytes > used_bytes ? reserved_bytes - used_bytes : 0; }
};
// What the driver says. false: it does not say.
bool reservoir_use(uint64_t key, ReservoirUse* use);

// Charges the slice for a growth of the reservoir by `bytes` that a call is about to cause; settle() ends it.
void note_growth(const InFlight& call, uint64_t key, uint64_t bytes);
// Sets the charge to what the reservoir holds, and ends that for growth of a call that noted `grown_bytes`.
// false: it has grown by more than was noted, and the slice has no room for that.
bool settle(const InFlight& call, uint64_t key, uint64_t grown_bytes);
// All of the call's GPU, before a call ends that has changed what the driver takes unasked: what the
// broker measures then is that. trim_reservoirs() is in quota.h.
void settle_reservoirs(const InFlight& call);

// A reservoir that the driver is about to end; it is put back if the driver would not.
struct EndingReservoir {
  uint64_t key;
  Reservoir reservoir;
  SliceGpu gpu;  // whose slice paid; none: not charged
  uint64_t covered_bytes;
};
EndingReservoir take_reservoir(uint64_t key);
void put_reservoir_back(const EndingReservoir& ending);
void reservoir_is_gone(const InFlight& call, const EndingReservoir& ending);

// Something that a reservoir had lent was given back to it: from now on it may shrink without a call.
void note_returned_to_reservoir();

// In a forked child, before its own attach.
void forget_reservoirs();

}  // namespace hook
