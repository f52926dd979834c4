// SPDX-License-Identifier: Apache-2.0
//
// This process's membership in its slices.
//
// Attached once, before the driver's own cuInit, by whichever hook needs it first; never detached. Where the
// process has no slice every call passes (transparent); where it has one that can't be attached nothing is
// given out (closed). A forked child starts anew: it attaches at its own first call, and its parent's slot
// stays the parent's. Any thread. A wait for another thread's attach has an end.
#pragma once

#include <atomic>
#include <cstdint>

#include "limiter/ledger.h"
#include "shm/layout.h"

namespace hook {

constexpr int kMaxSlices = 16;  // of one process

struct AttachedSlice {
  const shm::Limits* limits;
  shm::State* state;
  limiter::SlotRef slot;
  int gpu_count;                // checked copy of limits->header.gpu_count
  char id[shm::kSliceIdBytes];  // likewise
};

enum class Membership : uint32_t {
  kUnknown,  // nobody has asked yet
  kAttaching,
  kTransparent,  // no slice: every call passes
  kAttached,
  kClosed,  // a slice that can't be attached: no call that takes anything gets through
};

struct Session {
  // Other GPUs than the slices' are kept from the process by its container's device rules, or are not its own
  // to use.
  bool in_container;
  int slice_count;
  AttachedSlice slices[kMaxSlices];
};

// Attaches if nobody did; kTransparent, kAttached or kClosed.
Membership membership();
// Preconditions: membership() == kAttached. What it holds never changes in this process.
const Session& session();
// Adds one to a counter of the process's slices; does not attach.
void count(shm::Counter counter);
// The driver has a function of this name that the table does not know, and it was looked up: counted, and the
// name is noted for `cuslicectl audit`, as soon as the process is attached. Does not attach.
void note_unknown_function(const char* name);

// Whether a slice of this process has the GPU, and which. Preconditions: kAttached.
struct SliceGpu {
  const AttachedSlice* slice = nullptr;  // nullptr: in no slice
  int index = 0;                         // into limits->gpus
  explicit operator bool() const { return slice != nullptr; }
};
inline bool same_gpu(const SliceGpu& a, const SliceGpu& b) {
  return a.slice == b.slice && a.index == b.index;
}
// By UUID, as the driver reports it: never by ordinal. `device` is a CUdevice.
SliceGpu gpu_of_device(int device);
// Whether the GPU is in none of the slices and nothing but this library keeps the process off it: outside of
// a container, where every GPU of the node can be opened. Nothing may be taken there. Preconditions:
// kAttached.
bool is_off_limits(int device);
// As the driver reports it. false: no such device, or the driver is not initialised.
bool uuid_of_device(int device, uint8_t (&uuid)[16]);
// Of the calling thread's current context; none if there is no context.
SliceGpu gpu_of_current_context();
// In a forked child, before its own attach.
void forget_devices();

}  // namespace hook
