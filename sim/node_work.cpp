// SPDX-License-Identifier: Apache-2.0
//
// The work of this process' contexts: submitting, waiting, and when it was done.
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

#include "sim/locked_device.h"
#include "sim/node.h"

namespace sim {
namespace {

constexpr uint64_t kSpinBelowNs = 50'000;  // a sleep that short would end late by as much
constexpr uint64_t kWakeEarlyNs = 25'000;  // the last part of a longer sleep, spun so that it ends in time
constexpr uint64_t kRoomNs = 200'000;      // a full channel is waited for until so much of its work is done

bool in_range(ContextId context, int channel) {
  return context >= 0 && context < kMaxContexts && channel >= 0 && channel < kChannelsPerContext;
}

// Until about the time (kNever: for ever) or until *word is no longer `seen`.
void sleep_until(std::atomic<uint32_t>& word, uint32_t seen, uint64_t until_ns) {
  const uint64_t now_ns = clock_ns();
  if (now_ns >= until_ns) return;
  if (until_ns - now_ns < kSpinBelowNs) {
    while (word.load(std::memory_order_relaxed) == seen && clock_ns() < until_ns) __builtin_ia32_pause();
    return;
  }
  // The kernel may end a sleep late by the thread's slack, 50 us unless told otherwise.
  static __thread bool slack_is_set;
  if (!slack_is_set) slack_is_set = prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0) == 0;
  const uint64_t wake_ns = until_ns - kWakeEarlyNs;  // the caller looks, and spins the rest
  timespec until = {};
  until.tv_sec = wake_ns / 1'000'000'000;
  until.tv_nsec = wake_ns % 1'000'000'000;
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, seen, until_ns == kNever ? nullptr : &until, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

// When the markers of one context were completed that its rings no longer hold.
struct Node::MarkerTimes {
  struct Time {
    uint64_t number, completed_ns;
  };
  std::deque<Time> channels[kChannelsPerContext];

  void keep(int channel, uint64_t number, uint64_t completed_ns) {
    std::deque<Time>& times = channels[channel];
    times.push_back({number, completed_ns});
    if (times.size() > kMarkerTimes) times.pop_front();
  }

  // Of the marker, or of the first after it. 0: none.
  uint64_t find(int channel, uint64_t number) const {
    const std::deque<Time>& times = channels[channel];
    const auto at = std::lower_bound(times.begin(), times.end(), number,
                                     [](const Time& time, uint64_t value) { return time.number < value; });
    return at == times.end() ? 0 : at->completed_ns;
  }
};

void Node::forget_marker_times(ContextId context) {
  delete marker_times_[context];
  marker_times_[context] = nullptr;
}

Ticket Node::submit_locked(LockedDevice& locked, ContextId id, int channel, const Work& work) {
  // Every marker that leaves the ring hands its time on; it is completed, or there would be no room.
  if (const WorkItem* leaving = locked.engine.about_to_leave(id, channel)) {
    if (leaving->kind == Work::Kind::kMarker) {
      if (!marker_times_[id]) marker_times_[id] = new MarkerTimes;
      const uint64_t number = file_->contexts[id].channels[channel].submitted + 1 - kChannelDepth;
      marker_times_[id]->keep(channel, number, leaving->completed_ns);
    }
  }
  return {channel, locked.engine.submit(id, channel, work)};
}

Ticket Node::submit(ContextId id, int channel, const Work& work) {
  if (!in_range(id, channel)) return {};
  Context& context = file_->contexts[id];
  for (;;) {
    const uint32_t device = context.device_plus_one.load(std::memory_order_relaxed);
    if (!device) return {};
    {
      LockedDevice locked(*this, device - 1, Sweep::kIfOthersRun);
      if (!is_ours(context)) return {};
      if (locked.engine.has_room(id, channel)) return submit_locked(locked, id, channel, work);
    }
    wait_for_room(id, channel);
  }
}

Ticket Node::submit_join(ContextId id, int channel) {
  if (!in_range(id, channel)) return {};
  Context& context = file_->contexts[id];
  for (;;) {
    const uint32_t device = context.device_plus_one.load(std::memory_order_relaxed);
    if (!device) return {};
    {
      LockedDevice locked(*this, device - 1, Sweep::kIfOthersRun);
      if (!is_ours(context)) return {};
      Ticket open[kChannelsPerContext];
      int count = 0;
      for (int i = 0; i < kChannelsPerContext; ++i) {
        const Channel& other = context.channels[i];
        if (i != channel && other.completed != other.submitted) open[count++] = {i, other.submitted};
      }
      // One marker after another, each after as many of the channels as it can name.
      const Channel& own = context.channels[channel];
      const uint64_t markers = std::max(1, (count + kMaxAfter - 1) / kMaxAfter);
      if (own.submitted - own.completed + markers <= kChannelDepth) {
        Ticket ticket;
        for (uint64_t i = 0; i < markers; ++i) {
          Work marker;
          marker.kind = Work::Kind::kMarker;
          marker.after = open + i * kMaxAfter;
          marker.after_count = std::min<int>(kMaxAfter, count - i * kMaxAfter);
          ticket = submit_locked(locked, id, channel, marker);
        }
        return ticket;
      }
    }
    wait_for_room(id, channel);
  }
}

// Until some of a full channel's work is done: not only the next item, or the thread would wake for each
// kernel.
void Node::wait_for_room(ContextId id, int channel) {
  uint64_t number;
  {
    const uint32_t device = file_->contexts[id].device_plus_one.load(std::memory_order_relaxed);
    if (!device) return;
    LockedDevice locked(*this, device - 1, Sweep::kIfOthersRun);
    const Channel& state = file_->contexts[id].channels[channel];
    number = state.completed + 1;
    const uint64_t begin_ns = file_->rings[id][channel][number % kChannelDepth].work_end_ns;
    const uint64_t last = std::min(state.submitted, state.completed + kChannelDepth / 4);
    while (number < last &&
           file_->rings[id][channel][(number + 1) % kChannelDepth].work_end_ns - begin_ns < kRoomNs) {
      ++number;
    }
  }
  wait(id, {channel, number});
}

void Node::finish_spin(ContextId id, Ticket spin) {
  if (!in_range(id, spin.channel)) return;
  Context& context = file_->contexts[id];
  const uint32_t device = context.device_plus_one.load(std::memory_order_relaxed);
  if (!device) return;
  LockedDevice locked(*this, device - 1, Sweep::kIfOthersRun);
  if (!is_ours(context)) return;
  locked.engine.finish_spin(id, spin.channel, spin.number);
  locked.engine.commit();
  locked.wake_sleepers();
}

bool Node::completed(ContextId id, Ticket ticket) {
  if (!in_range(id, ticket.channel)) return true;
  const Context& context = file_->contexts[id];
  const uint32_t device = context.device_plus_one.load(std::memory_order_relaxed);
  if (!device) return true;
  LockedDevice locked(*this, device - 1, Sweep::kIfOthersRun);
  return !is_ours(context) || ticket.number <= context.channels[ticket.channel].completed;
}

uint64_t Node::completed_at(ContextId id, Ticket ticket) {
  if (!in_range(id, ticket.channel)) return clock_ns();
  const Context& context = file_->contexts[id];
  const uint32_t device = context.device_plus_one.load(std::memory_order_relaxed);
  if (!device) return clock_ns();
  LockedDevice locked(*this, device - 1, Sweep::kIfOthersRun);
  if (!is_ours(context)) return locked.device.now_ns;
  const Channel& state = context.channels[ticket.channel];
  if (ticket.number > state.completed) return 0;
  const auto* ring = file_->rings[id][ticket.channel];
  uint64_t number = ticket.number;
  if (state.submitted - number >= kChannelDepth) {
    const uint64_t kept_ns = marker_times_[id] ? marker_times_[id]->find(ticket.channel, number) : 0;
    if (kept_ns) return kept_ns;
    number = state.submitted - kChannelDepth + 1;
    if (number > state.completed) return locked.device.now_ns;
  }
  return ring[number % kChannelDepth].completed_ns;
}

void Node::wait(ContextId id, Ticket ticket) {
  if (!in_range(id, ticket.channel)) return;
  Context& context = file_->contexts[id];
  const uint32_t device_plus_one = context.device_plus_one.load(std::memory_order_relaxed);
  if (!device_plus_one) return;
  Device& device = file_->devices[device_plus_one - 1];
  uint64_t until_ns = 0;
  uint32_t generation = 0;
  for (bool first = true;; first = false) {
    uint32_t seen;
    {
      LockedDevice locked(*this, device_plus_one - 1, Sweep::kIfOthersRun);
      if (first) generation = context.generation;
      if (!is_ours(context) || context.generation != generation) return;
      if (ticket.number <= context.channels[ticket.channel].completed) return;
      until_ns = locked.engine.earliest_completion_ns(id, ticket.channel, ticket.number);
      seen = device.wake.load(std::memory_order_relaxed);
    }
    sleep_until(device.wake, seen, until_ns);
  }
}

SharedTicket Node::shared(ContextId id, Ticket ticket) {
  if (id < 0 || id >= kMaxContexts) return {};
  Context& context = file_->contexts[id];
  const uint32_t device = context.device_plus_one.load(std::memory_order_relaxed);
  if (!device) return {};
  LockedDevice locked(*this, device - 1, Sweep::kIfOthersRun);
  if (!is_ours(context)) return {};
  return {id, context.generation, ticket};
}

bool Node::completed(const SharedTicket& shared) {
  if (!in_range(shared.context, shared.ticket.channel)) return true;
  const Context& context = file_->contexts[shared.context];
  const uint32_t device = context.device_plus_one.load(std::memory_order_relaxed);
  if (!device) return true;
  LockedDevice locked(*this, device - 1, Sweep::kIfDue);
  return context.owner_plus_one == 0 || context.generation != shared.generation ||
         shared.ticket.number <= context.channels[shared.ticket.channel].completed;
}

}  // namespace sim
