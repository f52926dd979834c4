// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "limiter/arbiter.h"
#include "shm/layout.h"

namespace broker {

// Reads what the processes of one slice say about their work and adds it up for the arbiter. Everything read
// is copied once and clamped: whatever a tenant writes, times are not in the future and GPU time grows no
// faster than the clock. Remembers per process what was counted already, so a process that ends takes nothing
// away.
class WorkSum {
 public:
  // `slots`: how many slots to look at, at most kMaxSlots. `turn`: the number in the slice's gate.
  limiter::Observation read(const shm::State& state, uint32_t slots, uint32_t turn, uint64_t now_ns);

 private:
  struct Counted {
    uint32_t owner = 0;
    uint64_t occupied_ns = 0;
    uint64_t active_ns = 0;
  };
  std::vector<Counted> counted_;
  uint64_t occupied_ns_ = 0;
  uint64_t active_ns_ = 0;
  uint64_t last_ns_ = 0;
};

}  // namespace broker
