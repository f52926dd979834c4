// SPDX-License-Identifier: Apache-2.0
#include "limiter/arbiter.h"

#include <algorithm>
#include <limits>

#include "limiter/arbiter_slice.h"
#include "limiter/gpu_mask.h"

namespace limiter {

namespace {

constexpr uint64_t kNever = UINT64_MAX;
constexpr uint64_t kLongestDrainNs = 3'600'000'000'000;
// A step that comes so much later than it was asked for, or so much before the last one, says that the caller
// was stopped, or the clock set.
constexpr uint64_t kLostTimeNs = 1'000'000'000;

}  // namespace

Arbiter::Arbiter() : Arbiter(Settings()) {}
Arbiter::Arbiter(const Settings& settings) : settings_(settings), contest_({settings.quantum_ns}) {}
Arbiter::~Arbiter() = default;

void Arbiter::set(SliceKey key, const ArbiterTerms& terms, uint64_t now_ns) {
  auto [at, added] = slices_.try_emplace(key);
  Slice& slice = at->second;
  slice.terms = terms;
  slice.terms.compute_percent = std::clamp<uint32_t>(terms.compute_percent, 1, 100);
  slice.terms.compute_limit_percent = std::clamp<uint32_t>(terms.compute_limit_percent, 1, 100);
  if (added) slice.filled_at_ns = now_ns;
}

void Arbiter::remove(SliceKey key) { slices_.erase(key); }

Account Arbiter::account(SliceKey key) const {
  const auto at = slices_.find(key);
  return at == slices_.end() ? Account{} : at->second.account;
}

Standing Arbiter::standing(SliceKey key) const {
  const auto at = slices_.find(key);
  if (at == slices_.end()) return {};
  const Slice& slice = at->second;
  const bool waits = slice.seen.waiting && slice.turn == Slice::Turn::kNone;
  return {.gpu_mask = slice.terms.gpu_mask,
          .open = slice.told.mode == Mode::kOpen,
          .waits = waits,
          .capped = waits && capped_out(slice),
          .on_gpu = slice.turn != Slice::Turn::kNone || slice.left_over(),
          .deadline_ns = slice.left_over() ? slice.left_since_ns : slice.deadline_ns,
          .idle_since_ns = slice.seen.outstanding ? kNever : slice.seen.drained_ns};
}

void Arbiter::observe(SliceKey key, const Observation& observation, uint64_t now_ns) {
  const auto at = slices_.find(key);
  if (at == slices_.end()) return;
  Slice& slice = at->second;
  share_time_until(now_ns);
  const bool was_active = slice.active();
  const bool was_left_over = slice.left_over();
  account_waiting(slice, now_ns);
  const uint64_t elapsed_ns = now_ns - std::min(now_ns, slice.accounted_ns);
  const uint64_t active_ns = observation.active_ns - std::min(observation.active_ns, slice.seen.active_ns);
  account_wanted(slice, std::min(active_ns, elapsed_ns));
  slice.accounted_ns = now_ns;
  slice.seen = observation;
  // Times from outside are not believed beyond the present.
  slice.seen.drained_ns = std::min(slice.seen.drained_ns, now_ns);
  slice.seen.drain_expected_ns = std::min(slice.seen.drain_expected_ns, now_ns + kLongestDrainNs);
  // Less than before: a process has died and took its count with it.
  slice.occupied_charged_ns = std::min(slice.occupied_charged_ns, slice.seen.occupied_ns);
  if (was_left_over && !slice.left_over()) take_back(slice, slice.seen.drained_ns);
  if (!was_left_over && slice.left_over()) slice.left_since_ns = now_ns;
  if (!was_active && slice.active()) lift(slice);
}

void Arbiter::account_wanted(Slice& slice, uint64_t wanted_ns) {
  slice.account.wanted_ns += wanted_ns;
  slice.window.wanted_ns += wanted_ns;
}

// Whenever waiting ends: what is observed comes later, and with the turn.
void Arbiter::account_waiting(Slice& slice, uint64_t now_ns) {
  if (!slice.seen.waiting || slice.turn != Slice::Turn::kNone || now_ns <= slice.accounted_ns) return;
  slice.account.waited_ns += now_ns - slice.accounted_ns;
  account_wanted(slice, now_ns - slice.accounted_ns);
  slice.accounted_ns = now_ns;
}

// A slice that comes back from being idle starts one quantum behind what its GPUs have reached, at best.
void Arbiter::lift(Slice& slice) {
  const double window = static_cast<double>(settings_.quantum_ns) / slice.share();
  for_each_gpu(slice.terms.gpu_mask,
               [&](int gpu) { slice.virtual_ns = std::max(slice.virtual_ns, reached_ns_[gpu] - window); });
}

// Start-time fair queueing (Goyal, Vin, Cheng, 1996): a GPU's virtual time is the start tag of what it
// serves.
void Arbiter::reach(const Slice& slice) {
  for_each_gpu(slice.terms.gpu_mask,
               [&](int gpu) { reached_ns_[gpu] = std::max(reached_ns_[gpu], slice.virtual_ns); });
}

// The driver gives contexts that have work equal parts of the time: so it is charged, to each slice that
// holds a turn or has work left over from one. `sign` is -1 to undo it.
void Arbiter::share_time(uint64_t from_ns, uint64_t to_ns, const Slice* without, int sign) {
  std::vector<Slice*> present;
  while (from_ns < to_ns) {
    uint64_t until_ns = to_ns;
    present.clear();
    for (auto& [key, slice] : slices_) {
      if (&slice == without || !slice.shares_time() || !in_turns(slice)) continue;
      if (slice.present_since_ns() <= from_ns) {
        present.push_back(&slice);
      } else {
        until_ns = std::min(until_ns, slice.present_since_ns());
      }
    }
    for (Slice* slice : present) {
      const auto sharers = std::count_if(present.begin(), present.end(),
                                         [&](const Slice* other) { return other->overlaps(*slice); });
      const double part_ns = sign * static_cast<double>(until_ns - from_ns) / static_cast<double>(sharers);
      slice->held_ns += part_ns;
      slice->virtual_ns += part_ns / slice->share();
    }
    from_ns = until_ns;
  }
}

// Up to the present; but not for time that was lost: slices have paced themselves then, or nothing ran at
// all.
void Arbiter::share_time_until(uint64_t now_ns) {
  if (now_ns + kLostTimeNs < shared_until_ns_) start_over(now_ns);
  const bool lost = next_wake_ns_ < kNever - kLostTimeNs && now_ns > next_wake_ns_ + kLostTimeNs;
  share_time(shared_until_ns_, lost ? next_wake_ns_ : now_ns, nullptr, 1);
  shared_until_ns_ = std::max(shared_until_ns_, now_ns);
}

// The clock went back: all that was to be at some time counts from the present.
void Arbiter::start_over(uint64_t now_ns) {
  shared_until_ns_ = window_start_ns_ = now_ns;
  for (auto& [key, slice] : slices_) {
    slice.start_ns = slice.left_since_ns = slice.accounted_ns = slice.filled_at_ns = now_ns;
    if (slice.timed()) slice.deadline_ns = now_ns + settings_.quantum_ns;
    slice.seen.drained_ns = std::min(slice.seen.drained_ns, now_ns);
  }
  for (const uint64_t mask : groups_) contest_.renew_turns(mask, now_ns);
}

// It has had nothing on its GPUs since `end_ns`, which was not known until now: the others had it. What is
// said of times long past, or of more than was charged, is not believed.
void Arbiter::take_back(Slice& slice, uint64_t end_ns) {
  end_ns = std::max(end_ns, shared_until_ns_ - std::min(shared_until_ns_, settings_.overlap_max_ns));
  share_time(end_ns, shared_until_ns_, nullptr, -1);
  share_time(end_ns, shared_until_ns_, &slice, 1);
  if (slice.held_ns >= 0) return;
  slice.virtual_ns -= slice.held_ns / slice.share();
  slice.held_ns = 0;
}

// Where it will be at a time to come, if nobody else comes or goes.
double Arbiter::virtual_at(const Slice& slice, uint64_t time_ns) const {
  const uint64_t from_ns = std::max(shared_until_ns_, slice.present_since_ns());
  if (!slice.timed() || time_ns <= from_ns) return slice.virtual_ns;
  const auto sharers = std::count_if(slices_.begin(), slices_.end(), [&](const auto& entry) {
    const Slice& other = entry.second;
    return other.shares_time() && other.overlaps(slice) && other.present_since_ns() <= from_ns;
  });
  return slice.virtual_ns +
         static_cast<double>(time_ns - from_ns) / static_cast<double>(sharers) / slice.share();
}

void Arbiter::fill_buckets(Slice& slice, uint64_t now_ns) {
  if (now_ns <= slice.filled_at_ns) return;
  const auto elapsed = static_cast<double>(now_ns - slice.filled_at_ns);
  const auto quantum = static_cast<double>(settings_.quantum_ns);
  slice.filled_at_ns = now_ns;
  slice.credit_ns = std::min(slice.credit_ns + elapsed * slice.share(), 2 * quantum);

  slice.budget_ns += elapsed * slice.terms.compute_limit_percent / 100.0;
  // A turn under way has not been paid yet; until it is, the bucket may hold more. Nor is what it could not
  // use for want of a turn lost at once.
  if (slice.turn == Slice::Turn::kNone)
    slice.budget_ns = std::min(slice.budget_ns, (slice.seen.waiting ? 4 : 1) * quantum);
}

bool Arbiter::capped_out(const Slice& slice) const {
  return slice.capped() && slice.budget_ns < static_cast<double>(settings_.quantum_ns);
}

bool Arbiter::in_turns(const Slice& slice) const { return contest_.in_turns(slice.group_mask); }

// One that used it up, and then its turns to the end, wants throughput.
bool Arbiter::has_credit(const Slice& slice) {
  return slice.terms.latency && !slice.filled && slice.credit_ns > 0;
}

// In turns: another slice waits for a GPU of this one, has been given it ahead, or is still on it.
bool Arbiter::others_want(const Slice& slice) const {
  if (!in_turns(slice)) return false;
  return std::any_of(slices_.begin(), slices_.end(), [&](const auto& entry) {
    const Slice& other = entry.second;
    if (&other == &slice || !other.overlaps(slice)) return false;
    if (other.holds() || other.turn == Slice::Turn::kOverdue) return true;
    return other.seen.waiting && other.turn != Slice::Turn::kBeside && !capped_out(other) &&
           !has_credit(other);
  });
}

// By how much virtual time it is behind all others that wait for its GPUs; not above 0: it is not.
double Arbiter::behind_others(const Slice& slice) const {
  double least_ns = std::numeric_limits<double>::infinity();
  for (const auto& [key, other] : slices_) {
    if (&other == &slice || !other.overlaps(slice) || !other.seen.waiting) continue;
    if (other.turn == Slice::Turn::kNone && !capped_out(other))
      least_ns = std::min(least_ns, other.virtual_ns);
  }
  return least_ns - slice.virtual_ns;
}

bool Arbiter::alone(const Slice& slice) const {
  return std::none_of(slices_.begin(), slices_.end(), [&](const auto& entry) {
    const Slice& other = entry.second;
    return &other != &slice && other.overlaps(slice);
  });
}

// What a turn came to. The cap's bucket, and the account, are of GPU time only: gaps between launches are
// free there. What the slice says of that is believed as far as it fits into the turn, which took `turn_ns`.
void Arbiter::charge(Slice& slice, double held_ns, uint64_t turn_ns) {
  const uint64_t occupied_ns = slice.seen.occupied_ns - slice.occupied_charged_ns;
  slice.occupied_charged_ns = slice.seen.occupied_ns;
  // A little more than the turn: it may have launched ahead of its start. Much more is several processes'
  // sum.
  const bool known = occupied_ns > 0 && occupied_ns <= turn_ns + settings_.quantum_ns / 4;
  const uint64_t received_ns = known ? occupied_ns : static_cast<uint64_t>(held_ns);
  slice.account.held_ns += received_ns;
  slice.window.occupied_ns += received_ns;
  if (slice.capped()) slice.budget_ns -= static_cast<double>(known ? occupied_ns : turn_ns);
  slice.credit_ns = std::max(slice.credit_ns - held_ns, -static_cast<double>(settings_.quantum_ns));
}

// What has finished since the last time.
void Arbiter::charge_occupied(Slice& slice) {
  const uint64_t occupied_ns = slice.seen.occupied_ns - slice.occupied_charged_ns;
  slice.virtual_ns += static_cast<double>(occupied_ns) / slice.share();
  charge(slice, static_cast<double>(occupied_ns), occupied_ns);
}

// Estimates are off in one direction for a while (context switches, kernels measured with their launch); a
// successor that is woken by them would come too late, or run into the end of this turn.
void Arbiter::learn_lateness(Slice& slice, uint64_t drained_ns) {
  const int64_t limit_ns = static_cast<int64_t>(settings_.quantum_ns);
  const int64_t late_ns = static_cast<int64_t>(drained_ns - slice.seen.drain_expected_ns);
  slice.late_ns = (7 * slice.late_ns + std::clamp(late_ns, -limit_ns, limit_ns)) / 8;
}

void Arbiter::end_turn(Slice& slice, uint64_t end_ns) {
  if (slice.turn == Slice::Turn::kStanding) {
    charge_occupied(slice);
  } else if (slice.turn != Slice::Turn::kNone) {
    if (slice.turn == Slice::Turn::kRunning && slice.seen.closing && !slice.seen.outstanding)
      learn_lateness(slice, end_ns);
    take_back(slice, end_ns);
    charge(slice, slice.held_ns, end_ns - std::min(slice.start_ns, end_ns));
    if (end_ns > slice.deadline_ns + settings_.quantum_ns / 4) slice.account.overruns++;
  }
  slice.turn = Slice::Turn::kNone;
  slice.deadline_ns = kNever;
  slice.held_ns = 0;
  slice.left_since_ns = shared_until_ns_;
}

void Arbiter::begin_turn(Slice& slice, uint64_t start_ns, uint64_t deadline_ns) {
  account_waiting(slice, start_ns);
  slice.account.turns++;
  slice.start_ns = start_ns;
  slice.deadline_ns = deadline_ns;
  // That was said of its last turn, and may stay the latest we hear of it for a while.
  slice.seen.closing = false;
}

void Arbiter::stand(Slice& slice, uint64_t now_ns) {
  begin_turn(slice, now_ns, kNever);
  slice.turn = Slice::Turn::kStanding;
}

void Arbiter::grant(Slice& slice, uint64_t start_ns) {
  begin_turn(slice, start_ns, start_ns + settings_.quantum_ns);
  slice.turn = Slice::Turn::kRunning;
  reach(slice);
  // Its launches need not ring: one that is stopped before it is through with the turn has to be noticed.
  wake_at(slice.deadline_ns);
}

// Twice a quantum: at half the speed.
void Arbiter::grant_beside(Slice& slice, uint64_t now_ns) {
  begin_turn(slice, now_ns, now_ns + 2 * settings_.quantum_ns);
  slice.turn = Slice::Turn::kBeside;
}

void Arbiter::wake_at(uint64_t time_ns) { next_wake_ns_ = std::min(next_wake_ns_, time_ns); }

// Those do not wait for its turn to end, so that it can go on without a drain.
bool Arbiter::only_overdue_beside(const Slice& slice) const {
  return std::none_of(slices_.begin(), slices_.end(), [&](const auto& entry) {
    const Slice& other = entry.second;
    if (&other == &slice || !other.overlaps(slice) || other.turn == Slice::Turn::kOverdue) return false;
    return other.active();
  });
}

// Rule R1: four quanta after its deadline, or twice what it said itself that it needs; or when it has caught
// up with those that wait, which until then lose nothing that is theirs. But never beyond overlap_max_ns.
uint64_t Arbiter::overdue_at(const Slice& slice, uint64_t now_ns) const {
  const auto longest_ns = static_cast<double>(settings_.overlap_max_ns);
  const uint64_t said_ns = slice.seen.closing && slice.seen.drain_expected_ns > slice.deadline_ns
                               ? slice.seen.drain_expected_ns - slice.deadline_ns
                               : 0;
  const uint64_t patience_ns = std::max(4 * settings_.quantum_ns, 2 * std::min(said_ns, kNever / 4));
  const double behind_ns = std::clamp(behind_others(slice) * slice.share(), 0.0, longest_ns);
  const uint64_t even_at_ns = now_ns + static_cast<uint64_t>(behind_ns);
  return slice.deadline_ns +
         std::min(std::max(patience_ns, even_at_ns - std::min(even_at_ns, slice.deadline_ns)),
                  settings_.overlap_max_ns);
}

// Ends, limits or extends the turn of one slice.
void Arbiter::advance_holder(Slice& slice, uint64_t now_ns) {
  using Turn = Slice::Turn;
  if (slice.turn == Turn::kOverdue) {
    if (!slice.seen.outstanding) end_turn(slice, slice.seen.drained_ns);
    return;
  }
  if (slice.turn == Turn::kBeside) {
    advance_beside(slice, now_ns);
    return;
  }
  const bool wanted = others_want(slice);
  if (slice.turn == Turn::kStanding) {
    if (!in_turns(slice)) return;  // charged at the window's end, with the others'
    charge_occupied(slice);
    reach(slice);
    if (!wanted) return;
    // The contest begins: what it has run so far is charged above, from now on its time is.
    if (!slice.seen.outstanding && now_ns >= slice.idle_since_ns() + settings_.idle_grace_ns) {
      end_turn(slice, now_ns);
      return;
    }
    const uint64_t granted_ns = slice.start_ns;
    slice.turn = Turn::kRunning;
    slice.start_ns = now_ns;
    slice.deadline_ns = std::max(now_ns, granted_ns + settings_.quantum_ns);
  }

  // A turn that was not used is charged whole: a slice that can't run (stopped by a signal, say) falls behind
  // nobody.
  const uint64_t used_until_ns = slice.seen.drained_ns > slice.start_ns ? slice.seen.drained_ns : now_ns;
  const bool over = slice.seen.closing || now_ns >= slice.deadline_ns;
  if (over && !slice.seen.outstanding) {
    end_turn(slice, used_until_ns);
    slice.filled = true;
    // Nobody else wants it any more: go on without a deadline.
    if (!wanted && !slice.capped() && slice.seen.waiting) stand(slice, now_ns);
    // Between two launches of a loop that waits for each: it competes like one that waits at the gate.
    const bool pauses = !slice.seen.waiting && now_ns < used_until_ns + settings_.idle_grace_ns;
    if (wanted && pauses && !capped_out(slice) && behind_others(slice) >= 0) grant(slice, now_ns);
    return;
  }
  if (over && wanted && slice.seen.waiting && !capped_out(slice) && only_overdue_beside(slice)) {
    end_turn(slice, now_ns);
    slice.filled = true;
    grant(slice, now_ns);
    return;
  }
  if (!slice.seen.outstanding) {
    if (!wanted && !slice.capped()) return;
    const uint64_t give_way_ns = slice.idle_since_ns() + settings_.idle_grace_ns;
    if (now_ns >= give_way_ns && !slice.seen.waiting && wanted) {
      end_turn(slice, used_until_ns);
      slice.filled = false;
      return;
    }
    wake_at(wanted && give_way_ns > now_ns ? std::min(give_way_ns, slice.deadline_ns) : slice.deadline_ns);
    return;
  }
  const uint64_t overdue_at_ns = overdue_at(slice, now_ns);
  if (!wanted) {
    if (slice.capped()) wake_at(overdue_at_ns);
    return;
  }
  if (now_ns >= overdue_at_ns) {
    slice.turn = Turn::kOverdue;
    slice.filled = true;
    slice.account.overlaps++;
    return;
  }
  wake_at(overdue_at_ns);
}

// A turn beside others holds up nobody: it ends when the slice is idle, or drained after its deadline.
void Arbiter::advance_beside(Slice& slice, uint64_t now_ns) {
  const bool over = slice.seen.closing || now_ns >= slice.deadline_ns;
  if (slice.seen.outstanding) return;
  const uint64_t give_way_ns = slice.idle_since_ns() + settings_.idle_grace_ns;
  if (over || now_ns >= give_way_ns) {
    end_turn(slice, slice.seen.drained_ns > slice.start_ns ? slice.seen.drained_ns : now_ns);
    slice.filled = over && slice.credit_ns <= 0;
    return;
  }
  wake_at(give_way_ns);
}

// Gives turns to slices that wait, in order of virtual time, on GPUs that are free or about to be.
void Arbiter::grant_turns(uint64_t now_ns) {
  uint64_t busy_mask = 0;
  // Several slices may be about to drain; the turn that follows starts when the last of those in its way has.
  std::vector<Draining> draining;
  for (auto& [key, slice] : slices_) {
    if (!slice.holds() || !in_turns(slice)) continue;
    const bool expects_end =
        slice.turn == Slice::Turn::kRunning && slice.seen.closing && slice.seen.outstanding;
    if (!expects_end) {
      busy_mask |= slice.terms.gpu_mask;
      continue;
    }
    const uint64_t expected_ns =
        std::max(slice.seen.drain_expected_ns + static_cast<uint64_t>(slice.late_ns), now_ns);
    if (expected_ns - now_ns <= settings_.lead_ns) {
      draining.push_back({&slice, expected_ns});
    } else {
      busy_mask |= slice.terms.gpu_mask;
      wake_at(expected_ns - settings_.lead_ns);
    }
  }

  std::vector<Slice*> waiting;
  for (auto& [key, slice] : slices_) {
    // One that is overdue runs already; what it waits to launch is let in by rule R2.
    if (!slice.seen.waiting || slice.turn != Slice::Turn::kNone || slice.terms.gpu_mask == 0) continue;
    if (capped_out(slice)) {
      const double missing = static_cast<double>(settings_.quantum_ns) - slice.budget_ns;
      wake_at(now_ns + 1 + static_cast<uint64_t>(missing * 100.0 / slice.terms.compute_limit_percent));
      continue;
    }
    if (!in_turns(slice)) {
      if (slice.capped()) {
        grant(slice, now_ns);
      } else {
        stand(slice, now_ns);
      }
    } else if (has_credit(slice)) {
      grant_beside(slice, now_ns);
    } else {
      waiting.push_back(&slice);
    }
  }
  std::stable_sort(waiting.begin(), waiting.end(), [](const Slice* left, const Slice* right) {
    return left->virtual_ns < right->virtual_ns;
  });

  for (Slice* slice : waiting) {
    const uint64_t mask = slice->terms.gpu_mask;
    const bool free = (mask & busy_mask) == 0;
    busy_mask |= mask;  // also when it can't have them yet: those behind it may not take its GPUs away
    if (!free) continue;
    uint64_t start_ns = now_ns;
    bool ahead = false;
    for (const Draining& holder : draining) {
      if (!holder.slice->overlaps(*slice)) continue;
      ahead = true;
      start_ns = std::max(start_ns, holder.expected_ns);
    }
    if (ahead && renew_instead(*slice, draining, start_ns, now_ns)) continue;
    if (ahead || slice->capped() || others_want(*slice)) {
      grant(*slice, start_ns);
    } else {
      stand(*slice, start_ns);
    }
  }
}

// The one that is draining competes as well: if it stays furthest behind, it goes on at once, without a
// drain.
bool Arbiter::renew_instead(const Slice& next, const std::vector<Draining>& draining, uint64_t start_ns,
                            uint64_t now_ns) {
  for (const Draining& holder : draining) {
    Slice& slice = *holder.slice;
    if (!slice.overlaps(next) || !slice.seen.waiting || capped_out(slice)) continue;
    if (virtual_at(slice, start_ns) >= next.virtual_ns) continue;
    end_turn(slice, now_ns);
    slice.filled = true;
    grant(slice, now_ns);
    return true;
  }
  return false;
}

void Arbiter::step(uint64_t now_ns, std::vector<Command>* commands) {
  next_wake_ns_ = kNever;
  share_time_until(now_ns);
  for (auto& [key, slice] : slices_) fill_buckets(slice, now_ns);
  form_groups();
  advance_contests(now_ns);
  for (auto& [key, slice] : slices_) {
    if (slice.turn != Slice::Turn::kNone) advance_holder(slice, now_ns);
  }
  grant_turns(now_ns);

  contested_ = false;
  for (auto& [key, slice] : slices_) {
    if (slice.seen.waiting || (slice.timed() && slice.turn != Slice::Turn::kOverdue)) contested_ = true;
    Command command{key, Mode::kParked, kNever, false, false};
    if (!slice.capped() && slice.seen.contexts > 0 && alone(slice)) {
      if (slice.turn != Slice::Turn::kNone) end_turn(slice, now_ns);
      command.mode = Mode::kOpen;
    } else if (slice.holds() || slice.turn == Slice::Turn::kBeside) {
      command.mode = Mode::kTurn;
      command.deadline_ns = slice.deadline_ns;
      command.others_wait = slice.turn != Slice::Turn::kStanding;
      command.others_run = slice.turn == Slice::Turn::kBeside || (!in_turns(slice) && !alone(slice));
    } else {
      command.others_wait = true;
    }
    const Command& told = slice.told;
    if (slice.was_told && told.mode == command.mode && told.deadline_ns == command.deadline_ns &&
        told.others_wait == command.others_wait && told.others_run == command.others_run) {
      continue;
    }
    slice.told = command;
    slice.was_told = true;
    commands->push_back(command);
  }
}

}  // namespace limiter
