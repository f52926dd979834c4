// SPDX-License-Identifier: Apache-2.0
//
// Who may launch on a GPU, and until when: fair queueing of slices on virtual time, with shares, caps and
// turns.
//
// A pure function of what it is told: no clock, no thread, no memory map; the broker drives it, tests drive
// it with a fake clock. Not thread-safe: one caller at a time.
//
// Without MPS the GPU never runs two processes' kernels at once. While nobody is hurt by it the driver
// interleaves them: slices hold turns until further notice, several at a time, and are charged the GPU time
// of their finished work (where they overlap, no more together than there was). That is also how a slice
// runs that nobody else competes with. limiter/contest.h says when this is not enough. Then turns are
// exclusive, and lose nothing:
//
//  * A holder launches freely within a bounded amount of outstanding work until its deadline; charged is
//    the time from its start until the GPU is drained of the slice's work. A kernel that runs past the
//    deadline is charged too, and so paid back in later turns.
//  * Virtual time = charged / share; of the slices that wait, the one furthest behind is next. A slice that
//    was idle is lifted to one quantum behind those that were not: it can't save up.
//  * A holder with nothing to run gives way after idle_grace_ns. One that does not drain in time (rule R1)
//    keeps nobody waiting who is behind it, and nobody beyond overlap_max_ns: the next turn starts, the
//    driver time-slices.
//  * Whoever is on a GPU at a time is charged an equal part of it, as the driver divides it: also turns
//    granted ahead, beside others, or overdue, and work left over from before the turns.
//  * The next holder is woken lead_ns before the present one is expected to drain, so that its first
//    launches queue behind the last kernel.
//  * A slice of the latency class has credit while it used less than its share: its turn starts at once,
//    beside that of the holder. Without credit it waits as the others do. Credit fills at the rate of the
//    share, up to two quanta.
//
// Only a slice that shares its GPUs with no other, and has no cap, has an open gate, where nothing is
// counted: a process may queue a thousand kernels through one, and a slice that came to the GPU then would
// have to sit them out.
//
// A cap is a bucket that fills at the cap's rate, starts empty and holds one quantum, or four while the slice
// waits for others to end their turns.
//
// A slice may use several GPUs; it then takes its turn on all of them together (ranks that wait for each
// other run in the same turn). Slices without a GPU in common hold turns at the same time. A slice that waits
// for several GPUs reserves those that are free: others can't starve it.
//
// Bounds, for slices that always have work: over any interval the time received / share of two of them
// differs by at most l1 / share1 + l2 / share2, l being the longest turn: a quantum and what is under way at
// its end (start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996, theorem 1). A slice that comes waits
// for no more than two quanta among equals, as it may be one quantum behind. The GPU is busy for quantum /
// (quantum + switch) of the time or more.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "limiter/contest.h"

namespace limiter {

using SliceKey = uint64_t;

struct ArbiterTerms {
  uint64_t gpu_mask = 0;               // bit i: GPU i of the node
  uint32_t compute_percent = 0;        // guaranteed, 1 .. 100
  uint32_t compute_limit_percent = 0;  // cap, 1 .. 100
  bool latency = false;                // latency class: does not wait while it has credit
};

// What the slice's processes say, summed by the caller and already clamped.
struct Observation {
  uint32_t contexts = 0;     // on the slice's GPUs
  bool waiting = false;      // a launch waits at the gate
  bool outstanding = false;  // work that was launched may be unfinished
  bool closing = false;      // it launches no more in this turn; drains at about drain_expected_ns
  uint64_t drain_expected_ns = 0;
  uint64_t drained_ns = 0;   // when outstanding last became false
  uint64_t occupied_ns = 0;  // GPU time of finished work, ever growing
  uint64_t active_ns = 0;    // time with work outstanding, ever growing
};

enum class Mode : uint8_t { kParked, kOpen, kTurn };

struct Command {
  SliceKey slice;
  Mode mode;
  uint64_t deadline_ns;     // kTurn only; UINT64_MAX: until further notice
  bool others_wait;         // the slice's processes shall ring as soon as they are drained
  bool others_run = false;  // kTurn: at the same time
};

struct Account {
  uint64_t held_ns = 0;    // GPU time received: of its work where that is known, else of its turns
  uint64_t wanted_ns = 0;  // with a launch waiting or work outstanding
  uint64_t waited_ns = 0;  // with a launch waiting and no turn
  uint64_t turns = 0;
  uint64_t overruns = 0;  // drained more than a quarter of a quantum after the deadline
  uint64_t overlaps = 0;  // turns that went on because the slice did not drain in time (rule R1)
};

// How a slice stands after a step: what keeps it from running, or what it keeps others from.
struct Standing {
  uint64_t gpu_mask = 0;
  bool open = false;
  bool waits = false;                   // a launch waits, and it has no turn
  bool capped = false;                  // and would not get one if it were alone
  bool on_gpu = false;                  // it has a turn, or work left over from one
  uint64_t deadline_ns = UINT64_MAX;    // of its turn; of work left over, when that was to be done
  uint64_t idle_since_ns = UINT64_MAX;  // without work on the GPU; UINT64_MAX: it has some
};

class Arbiter {
 public:
  struct Settings {
    uint64_t quantum_ns = 5'000'000;
    uint64_t idle_grace_ns = 200'000;
    uint64_t lead_ns = 175'000;
    uint64_t overlap_max_ns =
        250'000'000;  // longest time that a holder may keep others waiting after its deadline
  };

  Arbiter();
  explicit Arbiter(const Settings& settings);
  ~Arbiter();

  // Replaces the terms if the slice is known; what it was charged stays.
  void set(SliceKey slice, const ArbiterTerms& terms, uint64_t now_ns);
  void remove(SliceKey slice);

  // The latest about a slice; unknown slices are ignored.
  void observe(SliceKey slice, const Observation& observation, uint64_t now_ns);

  // Decides. Appends what changed since the last call; the caller carries it out in order.
  void step(uint64_t now_ns, std::vector<Command>* commands);

  // When step() has to be called again though nobody rings; UINT64_MAX: not at all.
  uint64_t next_wake_ns() const { return next_wake_ns_; }

  // A launch waits or a turn with a deadline runs: tenants rely on the broker now (it has to show that it
  // lives).
  bool contested() const { return contested_; }

  // An unknown slice never did anything, and wants nothing.
  Account account(SliceKey slice) const;
  Standing standing(SliceKey slice) const;

 private:
  struct Slice;

  // A holder that launches no more, and when its work is expected to be done.
  struct Draining {
    Slice* slice;
    uint64_t expected_ns;
  };

  bool in_turns(const Slice& slice) const;
  static bool has_credit(const Slice& slice);
  bool others_want(const Slice& slice) const;
  double behind_others(const Slice& slice) const;
  bool only_overdue_beside(const Slice& slice) const;
  uint64_t overdue_at(const Slice& slice, uint64_t now_ns) const;
  bool alone(const Slice& slice) const;
  bool capped_out(const Slice& slice) const;
  void share_time(uint64_t from_ns, uint64_t to_ns, const Slice* without, int sign);
  void share_time_until(uint64_t now_ns);
  void start_over(uint64_t now_ns);
  void take_back(Slice& slice, uint64_t end_ns);
  double virtual_at(const Slice& slice, uint64_t time_ns) const;
  static void account_wanted(Slice& slice, uint64_t wanted_ns);
  static void account_waiting(Slice& slice, uint64_t now_ns);
  void lift(Slice& slice);
  void reach(const Slice& slice);
  void fill_buckets(Slice& slice, uint64_t now_ns);
  void charge(Slice& slice, double held_ns, uint64_t turn_ns);
  void charge_occupied(Slice& slice);
  void form_groups();
  void advance_contests(uint64_t now_ns);
  void settle_window(const std::vector<Slice*>& group, uint64_t window_ns, uint64_t now_ns);
  void begin_turns(std::vector<Slice*> group, uint64_t now_ns);
  void end_turns(const std::vector<Slice*>& group, uint64_t now_ns);
  void learn_lateness(Slice& slice, uint64_t drained_ns);
  void end_turn(Slice& slice, uint64_t end_ns);
  void advance_holder(Slice& slice, uint64_t now_ns);
  void advance_beside(Slice& slice, uint64_t now_ns);
  static void begin_turn(Slice& slice, uint64_t start_ns, uint64_t deadline_ns);
  void stand(Slice& slice, uint64_t now_ns);
  void grant(Slice& slice, uint64_t start_ns);
  void grant_beside(Slice& slice, uint64_t now_ns);
  void grant_turns(uint64_t now_ns);
  bool renew_instead(const Slice& next, const std::vector<Draining>& draining, uint64_t start_ns,
                     uint64_t now_ns);
  void wake_at(uint64_t time_ns);

  Settings settings_;
  Contest contest_;
  uint64_t window_start_ns_ = 0;
  uint64_t shared_until_ns_ = 0;  // what was held up to here is charged
  std::map<SliceKey, Slice> slices_;
  std::vector<uint64_t> groups_;            // masks that have no GPU in common
  std::array<double, 64> reached_ns_ = {};  // per GPU: the virtual time of what it serves
  uint64_t next_wake_ns_ = UINT64_MAX;
  bool contested_ = false;
};

}  // namespace limiter
