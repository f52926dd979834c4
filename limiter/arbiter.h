// SPDX-License-Identifier: Apache-2.0
//
// Who may launch on a GPU, and until when: fair queueing of slices on virtual time, with shares, caps and turns.
//
// A pure function of what it is told: no clock, no thread, no memory map; the broker drives it, tests drive it with a
// fake clock. Not thread-safe: one caller at a time.
//
// Without MPS the GPU never runs two processes' kernels at once, so a turn loses nothing: its holder launches freely
// within a bounded amount of outstanding work until its deadline, and what is charged is the time from its start
// until the GPU is drained of the slice's work. Virtual time = charged / share; the slice that is furthest behind is
// next. A kernel that runs past the deadline is charged too, and so paid back in later turns. A slice that was idle
// is lifted to one quantum behind the others: it can't save up.
//
// A slice may use several GPUs; it then takes its turn on all of them together (ranks that wait for each other run in
// the same turn). Slices without a GPU in common hold turns at the same time. A slice that waits for several GPUs
// reserves those that are free: others can't starve it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace limiter {

using SliceKey = uint64_t;

struct ArbiterTerms {
  uint64_t gpu_mask = 0;  // bit i: GPU i of the node
  uint32_t compute_percent = 0;        // guaranteed, 1 .. 100
  uint32_t compute_limit_percent = 0;  // cap, 1 .. 100
  bool latency = false;                // goes first while it has credit
};

// What the slice's processes say, summed by the caller and already clamped.
struct Observation {
  uint32_t contexts = 0;        // on the slice's GPUs
  bool waiting = false;         // a launch waits at the gate
  bool outstanding = false;     // work that was launched may be unfinished
  bool closing = false;         // it launches no more in this turn; drains at about drain_expected_ns
  uint64_t drain_expected_ns = 0;
  uint64_t drained_ns = 0;      // when outstanding last became false
  uint64_t occupied_ns = 0;     // GPU time of finished work, ever growing
};

enum class Mode : uint8_t { kParked, kOpen, kTurn };

struct Command {
  SliceKey slice;
  Mode mode;
  uint64_t deadline_ns;  // kTurn only; UINT64_MAX: until further notice
  bool others_wait;      // the slice's processes shall ring as soon as they are drained
};

struct Account {
  uint64_t held_ns = 0;    // charged
  uint64_t waited_ns = 0;  // with a launch waiting and no turn
  uint64_t turns = 0;
  uint64_t overruns = 0;   // drained more than a quarter of a quantum after the deadline
  uint64_t overlaps = 0;   // turns that went on because the slice did not drain in time (rule R1)
};

class Arbiter {
 public:
  struct Settings {
    uint64_t quantum_ns = 5'000'000;
    uint64_t idle_grace_ns = 200'000;    // a holder with nothing to run keeps its turn this long
    uint64_t lead_ns = 150'000;          // the next one is woken this long before the holder is expected to drain
    uint64_t overlap_max_ns = 250'000'000;
    uint64_t active_window_ns = 1'000'000'000;
  };

  Arbiter() = default;
  explicit Arbiter(const Settings& settings) : settings_(settings) {}

  void add(SliceKey slice, const ArbiterTerms& terms, uint64_t now_ns);
  void update(SliceKey slice, const ArbiterTerms& terms, uint64_t now_ns);
  void remove(SliceKey slice, uint64_t now_ns);

  // The latest about a slice; unknown slices are ignored.
  void observe(SliceKey slice, const Observation& observation, uint64_t now_ns);

  // Decides. Appends what changed since the last call; the caller carries it out in order.
  void step(uint64_t now_ns, std::vector<Command>* commands);

  // When step() has to be called again though nobody rings; UINT64_MAX: not at all.
  uint64_t next_wake_ns() const { return next_wake_ns_; }

  Account account(SliceKey slice) const;

 private:
  struct Slice;
  Settings settings_;
  std::map<SliceKey, Slice> slices_;
  uint64_t next_wake_ns_ = UINT64_MAX;
};

}  // namespace limiter
