// SPDX-License-Identifier: Apache-2.0
//
// What the arbiter knows of one slice. For its own files only.
#pragma once

#include <algorithm>

#include "limiter/arbiter.h"

namespace limiter {

struct Arbiter::Slice {
  enum class Turn : uint8_t {
    kNone,
    kStanding,  // until further notice, perhaps with others
    kRunning,   // with a deadline
    kBeside,    // as kRunning, beside that of another slice: latency class
    kOverdue,   // did not drain in time; others go on, it is still charged
  };

  ArbiterTerms terms;
  Observation seen;
  Account account;
  uint64_t group_mask = 0;  // GPUs of the slices that share some with it, directly or through others
  Contest::Member window;
  bool filled = false;    // it used its last turn to the end
  double virtual_ns = 0;  // charged / share
  Turn turn = Turn::kNone;
  uint64_t start_ns = 0;  // of the turn; charged from here
  uint64_t deadline_ns = UINT64_MAX;
  double held_ns = 0;          // charged, and not in the account yet
  uint64_t left_since_ns = 0;  // work without a turn is outstanding
  int64_t late_ns = 0;         // by how much it drains later than it says, on average; negative: earlier
  uint64_t accounted_ns = 0;   // up to when wanted_ns and waited_ns are
  double budget_ns = 0;        // of the cap
  double credit_ns = 0;        // latency class
  uint64_t filled_at_ns = 0;   // both
  uint64_t occupied_charged_ns = 0;  // of seen.occupied_ns, what has been charged
  Command told{0, Mode::kParked, UINT64_MAX, false, false};
  bool was_told = false;

  bool capped() const { return terms.compute_limit_percent < 100; }
  double share() const { return std::max<uint32_t>(terms.compute_percent, 1) / 100.0; }
  bool holds() const { return turn == Turn::kStanding || turn == Turn::kRunning; }
  bool timed() const { return turn == Turn::kRunning || turn == Turn::kBeside || turn == Turn::kOverdue; }
  bool left_over() const { return turn == Turn::kNone && seen.outstanding; }
  bool shares_time() const { return timed() || left_over(); }
  uint64_t present_since_ns() const {
    return timed() ? start_ns : left_since_ns;
  }  // of those that share time
  bool active() const { return timed() || seen.waiting || seen.outstanding; }
  bool overlaps(const Slice& other) const { return (terms.gpu_mask & other.terms.gpu_mask) != 0; }
  // Since when the holder has had nothing on the GPU.
  uint64_t idle_since_ns() const { return std::max(seen.drained_ns, start_ns); }
};

}  // namespace limiter
