// SPDX-License-Identifier: Apache-2.0
//
// The VRAM ledger: what the processes of a slice hold on one GPU, and whether one may take more.
//
// No total is stored; the sum is read. A process announces what it wants in its own line (`want`), reads all
// lines, and takes it (`held`) only if everything that anybody wants or holds fits the quota. So the sum of
// what is granted never passes the quota, not for a moment, with any number of processes and threads, and a
// process killed at any instruction leaves nothing but its own line, which is cleared when the process is
// known to be dead. tests/limiter/ledger_model_test.cpp explores all interleavings of this protocol with
// kills and two reapers.
//
// The order that this rests on, all sequentially consistent:
//   reserve:  want += n;  for every line: load want, then held;  fits: held += n, want -= n;  else want -= n
// (a peer moves bytes from want to held in that order, so a reader that loads want first sees them at least
// once.)
//
// Charged for a process on a GPU: held + max(overhead, context floor) - excess. `overhead` is the broker's
// measurement of what the driver took unasked; the floor stands for a first context until that is measured.
// The driver shrinks pools without a call, and nobody knows whether it was that when a process is listed with
// less than before. `excess` makes the charge true without deciding: it is forgiven until the process's next
// call, which may lower `held` itself.
//
// The broker compares what the driver lists for a process with what its line says it holds. That means
// something only while no call of the process is under way: from reserve() until the driver has answered the
// line says more than the driver, and from a free until its release() too. So such a call is announced by
// begin_call() and ended by end_call(), and the broker uses a sample only if was_quiescent().
//
// Cost: a reservation is two atomic adds and one pass over the lines up to slots_high: no lock, no system
// call. Budget: 150 ns for reserve + release and their calls up to 100 processes.
#pragma once

#include "shm/layout.h"

namespace limiter {

// A process' slot: only valid while the slot's generation is this one.
struct SlotRef {
  uint32_t slot;
  uint32_t generation;
};

enum class Reservation : uint8_t {
  kGranted,
  kRefused,  // it does not fit, whatever happens to the requests now under way
  kStale,    // the slot is not ours any more (we were taken for dead): attach again
};

struct Usage {
  uint64_t held_bytes;
  uint64_t overhead_bytes;  // the driver's own: measured, or the floors
  uint64_t orphaned_bytes;  // of dead processes, not yet returned by the driver
  uint64_t quota_bytes;
  uint64_t used_bytes() const { return held_bytes + overhead_bytes + orphaned_bytes; }
  uint64_t free_bytes() const { return used_bytes() >= quota_bytes ? 0 : quota_bytes - used_bytes(); }
};

// A call of this process that may change what it holds on `gpu`: begin_call() before anything else here, and
// end_call() when the driver has answered and the line says what it did. They nest and overlap. Not to be in
// flight while waiting for the broker. A stale slot is left alone.
void begin_call(shm::State& state, int gpu, SlotRef self);
void end_call(shm::State& state, int gpu, SlotRef self);

// Adds n bytes to what the slot holds, if the slice's quota on `gpu` allows it. When it would fit but for
// requests of peers that are neither granted nor given up yet, it waits for these, the lowest slot first, no
// lock held; at most kReserveDeadlineNs (a peer killed in mid-request is reaped within that).
constexpr uint64_t kReserveDeadlineNs = 2'000'000'000;
Reservation reserve(const shm::Limits& limits, shm::State& state, int gpu, SlotRef self, uint64_t bytes);

// Gives back n bytes; call after the driver has freed them. Saturates at 0. A stale slot is left alone.
void release(shm::State& state, int gpu, SlotRef self, uint64_t bytes);
// The same for what was reserved and not taken: nothing was released by it.
void cancel(shm::State& state, int gpu, SlotRef self, uint64_t bytes);

// Charges a first context before the driver makes it: sets the slot's floor to limits' context_bytes for the
// GPU. kGranted also if the slot has a floor or a measured overhead already. give_context() takes the floor
// back.
Reservation reserve_context(const shm::Limits& limits, shm::State& state, int gpu, SlotRef self);
void give_context(shm::State& state, int gpu, SlotRef self);

// Charges `bytes` more for what a call makes the driver take unasked (a further context, a larger stack, ...)
// until the broker has measured it: the floor becomes what is charged for the driver now and `bytes` more.
// give_overhead() takes them off the floor again, if they are still in there.
Reservation reserve_overhead(const shm::Limits& limits, shm::State& state, int gpu, SlotRef self,
                             uint64_t bytes);
void give_overhead(shm::State& state, int gpu, SlotRef self, uint64_t bytes);

// Marks `delta_bytes` (negative: no longer) of what the slot holds as managed memory. Saturates at 0.
void add_managed(shm::State& state, int gpu, SlotRef self, int64_t delta_bytes);

// The same for memory of pools, which the driver takes back when it likes: what it lists for the process may
// be that much less than what the line says, call or no call.
void add_pooled(shm::State& state, int gpu, SlotRef self, int64_t delta_bytes);

// Something was given back that the line does not show yet: memory of a pool to the pool.
void note_freed(shm::State& state, int gpu, SlotRef self);

// The broker has measured the slot's overhead (and published it in limits first) while the floor was
// `measured_bytes`: that is no longer charged. false: the floor is another one now, and stays.
bool clear_context_floor(shm::State& state, int gpu, SlotRef slot, uint64_t measured_bytes);

struct SlotUse {
  uint64_t held_bytes;
  uint64_t managed_bytes;
  uint64_t floor_bytes;
  uint64_t calls;     // read before all others
  uint64_t releases;  // by this process so far
  uint64_t pooled_bytes;
};
SlotUse slot_use(const shm::State& state, int gpu, uint32_t slot);
// Whether no call was under way from before `before` was read until `after` was: then `before` was true, and
// the driver's figure was the same but for pools, all the time between.
bool was_quiescent(const SlotUse& before, const SlotUse& after);

// The broker has seen that the slot was charged so much too much when it was as in `seen`. That is forgiven
// until the process's next call begins. Precondition: `seen` was quiescent, or `bytes` is 0.
void forgive(shm::State& state, int gpu, uint32_t slot, const SlotUse& seen, uint64_t bytes);

Usage usage(const shm::Limits& limits, const shm::State& state, int gpu);
uint64_t slot_charge(const shm::Limits& limits, const shm::State& state, int gpu, uint32_t slot);

// --- Slots.

struct ProcessIdentity {
  uint32_t pid;
  uint64_t pid_namespace;
  uint64_t start_time;
  char name[16];
};

// The two halves of take_slot(). Between them the owner is not known: it may be held up for so long that the
// slot is reaped and is another's when it goes on. It changes nothing then: each of the words that say who is
// in a slot carries the generation and is only ever exchanged for one of the same generation, and the reaper
// moved them all to the next before it freed the slot. settle_slot() is false then.
bool claim_slot(shm::State& state, uint32_t from, SlotRef* claimed);  // the first free one from there on
bool settle_slot(shm::State& state, SlotRef claimed, const ProcessIdentity& self);

// Takes a free slot for this process. false: all kMaxSlots are taken (by live or not yet reaped processes).
bool take_slot(shm::State& state, const ProcessIdentity& self, SlotRef* slot);

// Clears the slot of a dead process and frees it. Idempotent; safe with several reapers at once, and with a
// reaper that dies half-way. Precondition: the process of exactly this generation is dead.
void reap_slot(shm::State& state, uint32_t slot, uint32_t generation);

// Whether a reaper has cleared the slot and not freed it: it may have been killed there, and who was in the
// slot is not to be found any more. reap_slot() ends it.
bool is_nearly_reaped(const shm::Slot& slot, uint32_t owner);

// The same for a slot whose owner has not written itself down for a moment: it was killed while it took the
// slot, or has not run since. An owner that lives finds out, in take_slot(), and takes another. false: it has
// just written itself down, and keeps the slot.
bool reap_unwritten_slot(shm::State& state, uint32_t slot, uint32_t generation);

}  // namespace limiter
