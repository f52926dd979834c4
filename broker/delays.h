// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "limiter/arbiter.h"

namespace broker {

// Where each slice's time went lately, and whose doing it was: told after every step of the arbiter how the
// slices stand, it puts the time until the next step down to what kept a slice from running.
//
// Pure; not thread-safe. Keeps the last second and the last minute in buckets, so its memory is bounded by
// the number of pairs of slices that were in each other's way.
class Delays {
 public:
  // About another slice. All times are of the one that was delayed.
  struct Neighbour {
    uint64_t waited_ns = 0;        // it waited while this one was on its GPUs
    uint64_t late_ns = 0;          // the part of that after the deadline of this one's turn
    uint64_t late_turns = 0;       // turns that were late by more than `late_from_ns`
    uint64_t longest_late_ns = 0;  // of one turn
    uint64_t beside_ns = 0;        // the driver went round between the two
  };
  // The parts of span_ns: open, idle, received, capped, handover, gaps, and of each neighbour waited and
  // beside.
  struct Window {
    uint64_t span_ns = 0;
    uint64_t open_ns = 0;      // nothing was held back, nor measured
    uint64_t idle_ns = 0;      // it could have run, and wanted nothing
    uint64_t received_ns = 0;  // GPU time
    uint64_t capped_ns = 0;    // it waited for its own cap
    uint64_t handover_ns = 0;  // it waited, and nobody was on its GPUs: turns changed hands
    uint64_t gaps_ns = 0;      // work was under way, but the GPU did not run it all the time
    std::map<limiter::SliceKey, Neighbour> neighbours;
  };

  struct Slice {
    limiter::SliceKey key;
    limiter::Standing standing;
    uint64_t received_ns, wanted_ns;  // so far
  };

  explicit Delays(uint64_t late_from_ns) : late_from_ns_(late_from_ns) {}

  // What was delayed by `slice`, others still have.
  void remove(limiter::SliceKey slice) { accounts_.erase(slice); }
  void advance(const std::vector<Slice>& slices, uint64_t now_ns);

  static constexpr int kWindows = 2;
  // Of the last second and of the last minute, and of up to a bucket more, until the last advance(); empty
  // for an unknown slice.
  std::vector<Window> windows(limiter::SliceKey slice) const;
  // Window::handover_ns so far.
  uint64_t handover_ns(limiter::SliceKey slice) const;

 private:
  struct Sum {
    uint64_t open_ns = 0, wanted_ns = 0, received_ns = 0, capped_ns = 0, handover_ns = 0;
    std::map<limiter::SliceKey, Neighbour> neighbours;

    void add(const Sum& other, double part);
  };
  struct Bucket {
    uint64_t number;
    Sum sum;
  };
  // The turn that a slice waits for past its deadline.
  struct Late {
    uint64_t deadline_ns = 0;
    uint64_t late_ns = 0;
  };
  struct Account {
    Slice last;
    uint64_t since_ns;
    uint64_t handover_ns = 0;
    std::map<limiter::SliceKey, Late> late;
    std::array<std::deque<Bucket>, kWindows> buckets;
  };

  void put_down(Account& account, uint64_t now_ns, Sum* sum);
  void wait_for(Account& account, const Slice& holder, uint64_t from_ns, uint64_t until_ns, Sum* sum) const;
  void keep(Account& account, const Sum& sum, uint64_t now_ns) const;
  static Window explain(const Sum& sum, uint64_t span_ns);

  const uint64_t late_from_ns_;
  std::map<limiter::SliceKey, Account> accounts_;
  std::vector<Slice> present_;  // those that were on a GPU at the last advance()
  std::map<limiter::SliceKey, uint64_t> busy_until_ns_;
  uint64_t now_ns_ = 0;
};

}  // namespace broker
