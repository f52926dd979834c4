// SPDX-License-Identifier: Apache-2.0
//
// Whether a process may launch now, given the slice's gate and the work that it has under way.
//
// Pure: numbers and a time in, a decision out. What the numbers mean is the gate of shm/layout.h; the waiting
// is done by the caller. Estimates may be wrong by any factor: no decision here waits for one to come true
// (see Readmission).
#pragma once

#include <cstdint>

#include "shm/layout.h"

namespace limiter {

// The gate line, copied once.
struct GateView {
  uint32_t mode = shm::kParked;
  uint32_t turn = 0;
  uint64_t deadline_ns = 0;
  uint64_t run_ahead_ns = 0;
};

// What a process has launched and does not yet know to be finished.
struct Backlog {
  uint64_t estimate_ns = 0;  // of all of it
  uint32_t kernels = 0;
  uint64_t oldest_ns = 0;    // estimate of the part whose end is to be seen next
  uint64_t progress_ns = 0;  // when an end was last seen; if later, when this backlog began
};

enum class Admission : uint8_t {
  kAdmit,
  kRunAheadFull,  // enough is under way: wait for an end
  kClosing,       // the turn is over for this process: nothing more is launched in it
  kPark,          // no turn
};

// A stall of this length, or of twice the oldest part's estimate, means that an estimate or an assumption is
// wrong.
constexpr uint64_t kStallNs = 1'000'000;

inline uint64_t stall_ns(const Backlog& backlog) {
  return backlog.oldest_ns > kStallNs / 2 ? 2 * backlog.oldest_ns : kStallNs;
}

inline uint64_t since_progress_ns(const Backlog& backlog, uint64_t now_ns) {
  return now_ns > backlog.progress_ns ? now_ns - backlog.progress_ns : 0;
}

// How long the backlog will still take. Time since the last end counts as work done, up to the oldest part:
// more than that can't be done, or its end would have been seen.
inline uint64_t remaining_ns(const Backlog& backlog, uint64_t now_ns) {
  uint64_t done_ns = since_progress_ns(backlog, now_ns);
  if (done_ns > backlog.oldest_ns) done_ns = backlog.oldest_ns;
  return backlog.estimate_ns > done_ns ? backlog.estimate_ns - done_ns : 0;
}

// `closed`: this process has already said that it is through with turn view.turn.
// With nothing under way and time left, one kernel is admitted however long it is; two may be under way so
// that the GPU has the next one when it is through with the first. A backlog that is overdue admits none: it
// may be much longer than it was taken for.
inline Admission admit(const GateView& view, const Backlog& backlog, uint64_t own_ns, bool closed,
                       uint64_t now_ns) {
  if (view.mode == shm::kOpen) return Admission::kAdmit;
  if (view.mode != shm::kTurn) return Admission::kPark;
  if (closed || now_ns >= view.deadline_ns) return Admission::kClosing;
  if (backlog.kernels == 0) return Admission::kAdmit;
  uint64_t remaining = remaining_ns(backlog, now_ns);
  if (remaining >= view.deadline_ns - now_ns) return Admission::kClosing;
  if (backlog.kernels == 1) return Admission::kAdmit;
  if (since_progress_ns(backlog, now_ns) > stall_ns(backlog)) return Admission::kRunAheadFull;
  if (remaining >= view.run_ahead_ns || own_ns > view.run_ahead_ns - remaining)
    return Admission::kRunAheadFull;
  return Admission::kAdmit;
}

// Rules R2 and R3: launches that the gate holds back get through if what they wait for does not move, because
// it may be waiting for them (a kernel that spins until another one runs, in this process or in another of
// the slice). One for each stall_ns() without an end ends a deadlock. Where nothing moves soon after, kernels
// are only longer than estimated, and what is let in makes the turn longer still: the next one has to wait
// twice as long, up to kMostInVain times. Otherwise work of which each kernel lets in another one or more
// would never drain.
class Readmission {
 public:
  static constexpr uint32_t kMostInVain = 4;

  // Precondition: the backlog is not empty. `patience`: that many stalls make one.
  bool take(const Backlog& backlog, uint64_t patience, uint64_t now_ns) {
    if (now_ns < next_ns(backlog, patience)) return false;
    const bool helped =
        backlog.progress_ns > taken_ns_ && backlog.progress_ns - taken_ns_ <= stall_ns(backlog);
    const bool long_ago = now_ns - taken_ns_ > 4 * wait_ns(backlog, patience);
    if (helped || long_ago) {
      in_vain_ = 0;
    } else if (in_vain_ < kMostInVain) {
      ++in_vain_;
    }
    taken_ns_ = now_ns;
    return true;
  }
  // When take() is worth another call.
  uint64_t next_ns(const Backlog& backlog, uint64_t patience) const {
    return (backlog.progress_ns > taken_ns_ ? backlog.progress_ns : taken_ns_) + wait_ns(backlog, patience);
  }

 private:
  uint64_t wait_ns(const Backlog& backlog, uint64_t patience) const {
    return (patience * stall_ns(backlog)) << in_vain_;
  }

  uint64_t taken_ns_ = 0;
  uint32_t in_vain_ = 0;  // readmissions in a row after which nothing moved soon
};

// Without a turn, work is left over from one that did not end in time (rule R1), beside other slices: up to
// seven of them make a kernel take no longer than this.
constexpr uint64_t kParkedPatience = 4;

}  // namespace limiter
