// SPDX-License-Identifier: Apache-2.0
//
// Which slices compete, and when they go over to turns and back.
#include <algorithm>

#include "limiter/arbiter_slice.h"

namespace limiter {

// Slices that share GPUs, directly or through others.
void Arbiter::form_groups() {
  groups_.clear();
  for (const auto& [key, slice] : slices_) {
    if (slice.seen.contexts == 0 && !slice.active()) continue;
    uint64_t mask = slice.terms.gpu_mask;
    std::erase_if(groups_, [&mask](uint64_t group) {
      if ((group & mask) == 0) return false;
      mask |= group;
      return true;
    });
    // What it was merged with may connect it to groups that were passed already.
    groups_.push_back(mask);
  }
  for (auto& [key, slice] : slices_) {
    slice.group_mask = 0;
    for (const uint64_t group : groups_) {
      if ((group & slice.terms.gpu_mask) != 0) slice.group_mask |= group;
    }
  }
}

void Arbiter::advance_contests(uint64_t now_ns) {
  const uint64_t window_ns = now_ns - std::min(now_ns, window_start_ns_);
  const bool window_over = window_ns >= contest_.window_ns();
  for (const uint64_t mask : groups_) {
    std::vector<Slice*> group;
    for (auto& [key, slice] : slices_) {
      if (slice.group_mask == mask) group.push_back(&slice);
    }
    if (contest_.in_turns(mask)) {
      const auto filling = std::count_if(group.begin(), group.end(),
                                         [](const Slice* slice) { return slice->filled && slice->active(); });
      if (filling >= 2) contest_.renew_turns(mask, now_ns);
      contest_.expire_turns(mask, now_ns);
      if (contest_.in_turns(mask)) {
        wake_at(contest_.turns_end_ns(mask));
      } else {
        end_turns(group, now_ns);
      }
    } else {
      if (window_over) settle_window(group, window_ns, now_ns);
      if (contest_.in_turns(mask)) {
        wake_at(contest_.turns_end_ns(mask));
      } else if (std::count_if(group.begin(), group.end(), [](const Slice* slice) {
                   return slice->active() || slice->window.wanted_ns > 0;
                 }) >= 2) {
        wake_at((window_over ? now_ns : window_start_ns_) + contest_.window_ns());
      }
    }
  }
  if (!window_over) return;
  window_start_ns_ = now_ns;
  for (auto& [key, slice] : slices_) slice.window.wanted_ns = slice.window.occupied_ns = 0;
}

// Without turns: charges what the group's slices ran, and looks whether they need turns.
void Arbiter::settle_window(const std::vector<Slice*>& group, uint64_t window_ns, uint64_t now_ns) {
  uint64_t occupied_ns = 0;
  for (const Slice* slice : group) {
    if (slice->turn == Slice::Turn::kStanding)
      occupied_ns += slice->seen.occupied_ns - slice->occupied_charged_ns;
  }
  const double part =
      occupied_ns > window_ns ? static_cast<double>(window_ns) / static_cast<double>(occupied_ns) : 1.0;
  std::vector<Slice*> competing;
  std::vector<Contest::Member> members;
  for (Slice* slice : group) {
    if (slice->turn == Slice::Turn::kStanding) {
      const uint64_t own_ns = slice->seen.occupied_ns - slice->occupied_charged_ns;
      slice->occupied_charged_ns = slice->seen.occupied_ns;
      slice->window.occupied_ns += own_ns;
      slice->virtual_ns += part * static_cast<double>(own_ns) / slice->share();
      slice->account.held_ns += static_cast<uint64_t>(part * static_cast<double>(own_ns));
    }
    if (slice->window.wanted_ns == 0) continue;
    slice->window.guarantee = slice->share();
    competing.push_back(slice);
    members.push_back(slice->window);
  }
  if (competing.empty()) return;
  reach(**std::min_element(competing.begin(), competing.end(), [](const Slice* left, const Slice* right) {
    return left->virtual_ns < right->virtual_ns;
  }));
  const bool needed = contest_.needs_turns(members, window_ns);
  for (size_t i = 0; i < competing.size(); ++i) {
    competing[i]->window.behind_ns = members[i].behind_ns;
    // A latency class with credit may have had work all the time because it was waiting for the others.
    competing[i]->filled = Contest::pressed(members[i], window_ns) &&
                           !(competing[i]->terms.latency && competing[i]->credit_ns > 0);
  }
  if (!needed) return;
  contest_.begin_turns(competing.front()->group_mask, now_ns);
  begin_turns(competing, now_ns);
}

// What they lack or have too much of is evened out in turns, as far as it is not more than a quantum: nobody
// waits for more than two.
void Arbiter::begin_turns(std::vector<Slice*> group, uint64_t now_ns) {
  std::stable_sort(group.begin(), group.end(), [](const Slice* left, const Slice* right) {
    return left->virtual_ns < right->virtual_ns;
  });
  const double latest_ns = group.back()->virtual_ns;
  uint64_t held_mask = 0;
  for (Slice* slice : group) {
    slice->window.behind_ns = 0;
    const double window = static_cast<double>(settings_.quantum_ns) / slice->share();
    slice->virtual_ns = std::max(slice->virtual_ns, latest_ns - window);
    if (slice->turn != Slice::Turn::kStanding) continue;
    if ((held_mask & slice->terms.gpu_mask) != 0) {
      end_turn(*slice, now_ns);
    } else {
      held_mask |= slice->terms.gpu_mask;
    }
  }
}

void Arbiter::end_turns(const std::vector<Slice*>& group, uint64_t now_ns) {
  for (Slice* slice : group) {
    slice->window.behind_ns = 0;
    const bool timed = slice->turn == Slice::Turn::kRunning || slice->turn == Slice::Turn::kBeside;
    if (!timed || slice->capped()) continue;
    end_turn(*slice, now_ns);
    stand(*slice, now_ns);
  }
}

}  // namespace limiter
