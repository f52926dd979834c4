// SPDX-License-Identifier: Apache-2.0
#include "broker/work_sum.h"

#include <algorithm>

namespace broker {
namespace {

// GPU time is reported when a batch of work is done, so a step may be larger than the time since the last
// look.
constexpr uint64_t kOccupiedSlackNs = 250'000'000;
constexpr uint64_t kDrainHorizonNs = 10'000'000'000;
constexpr uint32_t kMaxContextsPerProcess = 1024;

}  // namespace

limiter::Observation WorkSum::read(const shm::State& state, uint32_t slots, uint32_t turn, uint64_t now_ns) {
  slots = std::min<uint32_t>(slots, shm::kMaxSlots);
  if (counted_.size() < slots) counted_.resize(slots);

  const uint64_t elapsed_ns = last_ns_ == 0 ? 0 : now_ns - std::min(now_ns, last_ns_);
  limiter::Observation sum;
  bool any_closing = false;
  bool any_launching = false;
  uint64_t newly_occupied_ns = 0;
  uint64_t newly_active_ns = 0;
  for (uint32_t slot = 0; slot < slots; ++slot) {
    const uint32_t owner = state.slots[slot].owner.load(std::memory_order_acquire);
    Counted& counted = counted_[slot];
    if (owner != counted.owner) counted = {owner, 0, 0};
    if (shm::slot_state(owner) != shm::kSlotLive) continue;

    const shm::Work& work = state.work[slot];
    // What a ring announces was written before it, so acquire on the words that are read first is enough.
    const bool waiting = work.waiting.load(std::memory_order_acquire) != 0;
    const bool outstanding = work.outstanding.load(std::memory_order_acquire) != 0;
    const bool closing = turn != 0 && work.closing_turn.load(std::memory_order_relaxed) == turn;
    const uint64_t drained_ns = work.drained_ns.load(std::memory_order_relaxed);
    const uint64_t occupied_ns = work.occupied_ns.load(std::memory_order_relaxed);
    uint64_t active_ns = work.active_ns.load(std::memory_order_acquire);
    const uint64_t active_at_ns = work.active_at_ns.load(std::memory_order_relaxed);
    if (outstanding && active_at_ns < now_ns) active_ns += now_ns - active_at_ns;

    sum.contexts += std::min(work.contexts.load(std::memory_order_relaxed), kMaxContextsPerProcess);
    sum.waiting |= waiting;
    sum.outstanding |= outstanding;
    if (closing && (waiting || outstanding)) {
      any_closing = true;
      sum.drain_expected_ns =
          std::max(sum.drain_expected_ns, work.drain_expected_ns.load(std::memory_order_relaxed));
    } else if (outstanding) {
      any_launching = true;
    }
    sum.drained_ns = std::max(sum.drained_ns, std::min(drained_ns, now_ns));
    if (occupied_ns > counted.occupied_ns) newly_occupied_ns += occupied_ns - counted.occupied_ns;
    counted.occupied_ns = occupied_ns;
    if (active_ns > counted.active_ns) {
      newly_active_ns += std::min(active_ns - counted.active_ns, elapsed_ns);
      counted.active_ns = active_ns;
    }
  }

  occupied_ns_ += std::min(newly_occupied_ns, elapsed_ns + kOccupiedSlackNs);
  // Of several processes at the same time: not told apart, so as if they came one after the other.
  active_ns_ += std::min(newly_active_ns, elapsed_ns);
  last_ns_ = now_ns;

  sum.occupied_ns = occupied_ns_;
  sum.active_ns = active_ns_;
  sum.closing = any_closing && !any_launching;
  // One that has passed stays: how late the slice is, and how long it asked for, are read from it.
  sum.drain_expected_ns =
      std::clamp(sum.drain_expected_ns, now_ns - std::min(now_ns, kDrainHorizonNs), now_ns + kDrainHorizonNs);
  return sum;
}

}  // namespace broker
