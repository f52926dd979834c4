// SPDX-License-Identifier: Apache-2.0
//
// The engine's reckoning ahead: when something can be done at the earliest, as things stand.
#include <algorithm>

#include "sim/channel_set.h"
#include "sim/engine.h"

namespace sim {
namespace {

constexpr int kDependencyDepth = 4;      // how far earliest_completion_ns() follows `after`
constexpr uint64_t kIdleLookahead = 64;  // how many queued items earliest_idle_ns() adds up

}  // namespace

uint64_t Engine::earliest_completion_ns(int context, int channel, uint64_t number) const {
  return earliest_completion_ns(context, channel, number, kDependencyDepth);
}

uint64_t Engine::earliest_completion_ns(int index, int channel, uint64_t number, int depth) const {
  const Context& context = file_.contexts[index];
  const Channel& state = context.channels[channel];
  const uint64_t now_ns = device_.now_ns;
  if (number <= state.completed) return now_ns;

  const auto after_dependencies = [&](const WorkItem& work) {
    uint64_t at_ns = now_ns;
    for (int i = 0; i < work.after_count && depth > 0; ++i) {
      const int after = after_channel(work.after[i]);
      at_ns = std::max(at_ns, earliest_completion_ns(index, after, after_number(work.after[i]), depth - 1));
    }
    return add_saturating(at_ns, work.duration_ns);
  };

  const WorkItem& first = head(index, channel);
  uint64_t at_ns;
  if (context.running & bit(channel)) {
    at_ns = state.head_ns;
  } else if (context.runnable & bit(channel)) {
    at_ns = add_saturating(earliest_sms_ns(index), state.head_ns);
  } else if (context.copying & bit(channel)) {
    const bool first_in_queue =
        device_.copy_head == static_cast<uint32_t>(index * kChannelsPerContext + channel) + 1;
    at_ns = first_in_queue ? device_.copy_end_ns : add_saturating(device_.copy_end_ns, first.duration_ns);
  } else if (context.held & bit(channel)) {
    at_ns = kNever;
  } else {
    at_ns = after_dependencies(first);
  }
  if (number == state.completed + 1) return at_ns;
  const WorkItem& last = item(index, channel, number);
  return std::max(add_saturating(at_ns, last.work_end_ns - first.work_end_ns), after_dependencies(last));
}

// When a head that is runnable but does not run can have SMs.
uint64_t Engine::earliest_sms_ns(int index) const {
  const uint64_t now_ns = device_.now_ns;
  const uint64_t switch_ns = file_.settings.context_switch_ns;
  if (device_.current == static_cast<uint32_t>(index) + 1) {
    if (device_.switch_end_ns) return device_.switch_end_ns;
    const uint64_t end_ns = next_kernel_end_ns();
    return device_.ready_head ? std::min(end_ns, device_.slice_end_ns) : end_ns;
  }
  if (device_.switch_end_ns) return device_.switch_end_ns + switch_ns;
  if (!device_.current) return now_ns;
  return std::min(device_.slice_end_ns, earliest_idle_ns()) + switch_ns;
}

// When the current context, whose turn it is, can have nothing more to run: not before the work that one of
// its running channels has in a row is done.
uint64_t Engine::earliest_idle_ns() const {
  const int index = device_.current - 1;
  const Context& context = file_.contexts[index];
  uint64_t idle_ns = device_.now_ns;
  for (uint32_t running = context.running; running && idle_ns < device_.slice_end_ns;) {
    const int channel = take_lowest(running);
    const Channel& state = context.channels[channel];
    uint64_t at_ns = state.head_ns;
    const uint64_t end = std::min(state.submitted, state.completed + kIdleLookahead);
    for (uint64_t number = state.completed + 2; number <= end; ++number) {
      const WorkItem& work = item(index, channel, number);
      const bool keeps = work.kind == Work::Kind::kKernel || work.kind == Work::Kind::kMarker;
      if (!keeps || !may_start(index, work)) break;
      at_ns = add_saturating(at_ns, work.duration_ns);
    }
    idle_ns = std::max(idle_ns, at_ns);
  }
  return idle_ns;
}

}  // namespace sim
