// SPDX-License-Identifier: Apache-2.0
#include "sim/engine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>

#include "sim/channel_set.h"

namespace sim {

Engine::Engine(NodeFile& file, int device, int sm_count)
    : file_(file), device_(file.devices[device]), sm_count_(sm_count), journal_(file, file.devices[device]) {}

// --- Items.

WorkItem& Engine::item(int context, int channel, uint64_t number) const {
  return file_.rings[context][channel][number % kChannelDepth];
}

WorkItem& Engine::head(int context, int channel) const {
  return item(context, channel, file_.contexts[context].channels[channel].completed + 1);
}

uint32_t Engine::sms_of(const WorkItem& work) const {
  const uint32_t most = work.partition ? std::min<uint32_t>(work.partition_sms, sm_count_) : sm_count_;
  return work.sms == 0 ? most : std::min<uint32_t>(work.sms, most);
}

bool Engine::is_done(int context, uint64_t after) const {
  return file_.contexts[context].channels[after_channel(after)].completed >= after_number(after);
}

bool Engine::may_start(int context, const WorkItem& work) const {
  for (int i = 0; i < work.after_count; ++i) {
    if (!is_done(context, work.after[i])) return false;
  }
  return true;
}

// --- Passing time.

void Engine::advance(uint64_t now_ns) {
  for (;;) {
    const uint64_t event_ns = next_event_ns();
    if (event_ns > now_ns) break;
    if (event_ns > device_.now_ns) journal_.set(device_.now_ns, event_ns);
    play_events();
    if (journal_.nearly_full()) commit();
  }
  if (now_ns > device_.now_ns) journal_.set(device_.now_ns, now_ns);
}

uint64_t Engine::next_event_ns() const {
  uint64_t event_ns = device_.copy_head ? device_.copy_end_ns : kNever;
  if (device_.switch_end_ns) return std::min(event_ns, device_.switch_end_ns);
  event_ns = std::min(event_ns, next_kernel_end_ns());
  if (device_.ready_head) event_ns = std::min(event_ns, device_.slice_end_ns);
  return event_ns;
}

uint64_t Engine::next_kernel_end_ns() const {
  uint64_t end_ns = kNever;
  if (!device_.current) return end_ns;
  const Context& context = file_.contexts[device_.current - 1];
  for (uint32_t running = context.running; running;) {
    end_ns = std::min(end_ns, context.channels[take_lowest(running)].head_ns);
  }
  return end_ns;
}

// Everything that falls due at device_.now_ns. What is completed here may make more fall due at the same
// time; the loop in advance() comes back for that.
void Engine::play_events() {
  const uint64_t now_ns = device_.now_ns;
  if (device_.copy_head && device_.copy_end_ns <= now_ns) {
    const int lane = device_.copy_head - 1;
    const int context = lane / kChannelsPerContext, channel = lane % kChannelsPerContext;
    const uint32_t next = file_.contexts[context].channels[channel].copy_next;
    journal_.set(device_.copy_head, next);
    if (next) {
      start_copy();
    } else {
      journal_.set(device_.copy_tail, 0);
    }
    complete(context, channel);
  }
  if (device_.switch_end_ns) {
    if (device_.switch_end_ns <= now_ns) end_switch();
  } else if (device_.current) {
    const int current = device_.current - 1;
    Context& context = file_.contexts[current];
    for (uint32_t running = context.running; running;) {
      const int channel = take_lowest(running);
      if (context.channels[channel].head_ns <= now_ns) complete(current, channel);
    }
    if (device_.ready_head && device_.slice_end_ns <= now_ns && context.runnable) {
      stop_kernels(current);
      push_ready(current);
      begin_turn(pop_ready());
    }
  }
  dispatch();
}

// --- Channels.

// Looks at the heads of these channels, and of those that the completion of markers lets go on.
void Engine::examine(int index, uint32_t channels) {
  Context& context = file_.contexts[index];
  while (channels) {
    // Everything up to here is consistent but for the channels still to be examined; recover() examines all.
    if (journal_.nearly_full()) commit();
    const int channel = std::countr_zero(channels);
    const Channel& state = context.channels[channel];
    const uint32_t started = context.held | context.copying | context.runnable;
    if (state.completed == state.submitted || (started & bit(channel))) {
      channels &= ~bit(channel);
      continue;
    }
    const WorkItem& work = head(index, channel);
    if (!may_start(index, work)) {
      if (!(context.blocked & bit(channel))) journal_.add(context.blocked, bit(channel));
      channels &= ~bit(channel);
      continue;
    }
    if (context.blocked & bit(channel)) journal_.set(context.blocked, context.blocked & ~bit(channel));

    const bool waits = work.kind == Work::Kind::kSpin && work.sms == 0;
    if (work.kind == Work::Kind::kMarker || (waits && work.finished)) {
      item(index, channel, state.completed + 1).completed_ns = device_.now_ns;
      journal_.add(context.channels[channel].completed, 1);
      channels |= context.blocked;  // the channel itself stays: its next head
    } else {
      channels &= ~bit(channel);
      if (waits) {
        journal_.add(context.held, bit(channel));
      } else if (work.kind == Work::Kind::kCopy) {
        push_copy(index, channel);
      } else {
        make_runnable(index, channel, work);
      }
    }
  }
}

// The head of a channel that had started is done.
void Engine::complete(int index, int channel) {
  Context& context = file_.contexts[index];
  head(index, channel).completed_ns = device_.now_ns;
  if (context.runnable & bit(channel)) {
    journal_.set(context.runnable, context.runnable & ~bit(channel));
    journal_.set(context.running, context.running & ~bit(channel));
  } else if (context.copying & bit(channel)) {
    journal_.set(context.copying, context.copying & ~bit(channel));
  } else {
    journal_.set(context.held, context.held & ~bit(channel));
  }
  journal_.add(context.channels[channel].completed, 1);
  examine(index, bit(channel) | context.blocked);
}

void Engine::make_runnable(int index, int channel, const WorkItem& work) {
  Context& context = file_.contexts[index];
  uint64_t left_ns = work.duration_ns;
  if (work.kind == Work::Kind::kSpin) left_ns = work.finished ? 0 : kNever;
  journal_.set(context.channels[channel].head_ns, left_ns);
  const bool was_idle = context.runnable == 0;
  journal_.add(context.runnable, bit(channel));
  if (!was_idle) return;
  if (device_.current != static_cast<uint32_t>(index) + 1) {
    if (!context.in_ready_queue) push_ready(index);
  } else if (!device_.switch_end_ns && !device_.busy_since_ns) {
    // It had kept the idle SMs, since nobody wanted them; its turn begins now.
    journal_.set(device_.slice_end_ns, device_.now_ns + file_.settings.time_slice_ns);
  }
}

bool Engine::has_room(int context, int channel) const {
  const Channel& state = file_.contexts[context].channels[channel];
  return state.submitted - state.completed < kChannelDepth;
}

const WorkItem* Engine::about_to_leave(int context, int channel) const {
  const uint64_t number = file_.contexts[context].channels[channel].submitted + 1;
  return number > kChannelDepth ? &item(context, channel, number - kChannelDepth) : nullptr;
}

uint64_t Engine::submit(int index, int channel, const Work& work) {
  Context& context = file_.contexts[index];
  Channel& state = context.channels[channel];
  const uint64_t number = state.submitted + 1;
  const bool takes_time = work.kind == Work::Kind::kKernel || work.kind == Work::Kind::kCopy;
  const uint64_t duration_ns = takes_time ? work.duration_ns : 0;
  WorkItem& added = item(index, channel, number);
  added.order = device_.last_order + 1;
  added.duration_ns = duration_ns;
  added.work_end_ns = state.work_ns + duration_ns;
  added.completed_ns = 0;
  added.sms = std::min(work.sms, sm_count_);
  added.partition = work.partition;
  added.partition_sms = work.partition_sms;
  added.kind = work.kind;
  added.finished = 0;
  added.after_count = 0;
  for (int i = 0; i < work.after_count; ++i) {
    const Ticket& ticket = work.after[i];
    if (ticket.channel < 0) continue;
    const uint64_t after = pack_after(ticket);
    if (!is_done(index, after)) added.after[added.after_count++] = after;
  }
  journal_.set(device_.last_order, device_.last_order + 1);
  journal_.set(state.work_ns, added.work_end_ns);
  journal_.set(state.submitted, number);
  if (state.completed + 1 == number) {
    examine(index, bit(channel));
    dispatch();
  }
  return number;
}

void Engine::finish_spin(int index, int channel, uint64_t number) {
  Context& context = file_.contexts[index];
  const Channel& state = context.channels[channel];
  if (number <= state.completed || number > state.submitted) return;
  item(index, channel, number).finished = 1;
  if (number != state.completed + 1) return;
  if (context.held & bit(channel)) {
    complete(index, channel);
    dispatch();
  } else if (context.runnable & bit(channel)) {
    // Its end while it has SMs; no time left until it gets them again otherwise.
    const bool runs = context.running & bit(channel);
    journal_.set(context.channels[channel].head_ns, runs ? device_.now_ns : 0);
    advance(device_.now_ns);
  }
}

// --- Turns.

void Engine::end_switch() {
  journal_.add(device_.switch_ns, file_.settings.context_switch_ns);
  journal_.set(device_.slice_end_ns, device_.switch_end_ns + file_.settings.time_slice_ns);
  journal_.set(device_.switch_end_ns, 0);
}

// Gives the SMs to whose turn it is, and starts what fits.
void Engine::dispatch() {
  if (device_.switch_end_ns) return;
  const int current = static_cast<int>(device_.current) - 1;
  if (current >= 0 && file_.contexts[current].runnable) {
    start_kernels(current);
    return;
  }
  settle_busy();
  if (!device_.ready_head) return;
  begin_turn(pop_ready());
  if (!device_.switch_end_ns) start_kernels(device_.current - 1);
}

// Precondition: no kernel runs. Only the first context after none comes without a switch.
void Engine::begin_turn(int next) {
  if (device_.current) {
    journal_.add(device_.switches, 1);
    if (file_.settings.context_switch_ns) {
      journal_.set(device_.switch_end_ns, device_.now_ns + file_.settings.context_switch_ns);
    }
  }
  journal_.set(device_.current, next + 1);
  journal_.set(device_.slice_end_ns, device_.now_ns + file_.settings.time_slice_ns);
}

void Engine::start_kernels(int index) {
  Context& context = file_.contexts[index];
  uint32_t free_sms = sm_count_;
  std::array<uint16_t, 256> used_of_partition = {};
  for (uint32_t running = context.running; running;) {
    const WorkItem& work = head(index, take_lowest(running));
    free_sms -= std::min(free_sms, sms_of(work));
    used_of_partition[work.partition] += sms_of(work);
  }
  std::bitset<256> full;
  uint32_t waiting = context.runnable & ~context.running;
  while (waiting && free_sms) {
    int first = -1;
    for (uint32_t rest = waiting; rest;) {
      const int channel = take_lowest(rest);
      if (full[head(index, channel).partition]) continue;
      if (first < 0 || head(index, channel).order < head(index, first).order) first = channel;
    }
    if (first < 0) break;
    // Strictly in order: one that does not fit holds back those behind it, or it might wait for ever; one
    // that waits for its partition, only those that want the same.
    const WorkItem& work = head(index, first);
    const uint32_t sms = sms_of(work);
    if (work.partition && used_of_partition[work.partition] + sms > work.partition_sms) {
      full.set(work.partition);
      continue;
    }
    if (sms > free_sms) break;
    used_of_partition[work.partition] += sms;
    free_sms -= sms;
    waiting &= ~bit(first);
    Channel& state = context.channels[first];
    journal_.set(state.head_ns, add_saturating(state.head_ns, device_.now_ns));
    journal_.add(context.running, bit(first));
  }
  if (!device_.busy_since_ns) journal_.set(device_.busy_since_ns, device_.now_ns);
}

void Engine::stop_kernels(int index) {
  settle_busy();
  Context& context = file_.contexts[index];
  for (uint32_t running = context.running; running;) {
    Channel& state = context.channels[take_lowest(running)];
    if (state.head_ns != kNever) journal_.set(state.head_ns, state.head_ns - device_.now_ns);
  }
  journal_.set(context.running, 0);
  journal_.set(device_.busy_since_ns, 0);
}

void Engine::push_ready(int index) {
  Context& context = file_.contexts[index];
  journal_.set(context.in_ready_queue, 1);
  journal_.set(context.ready_next, 0);
  if (device_.ready_tail) {
    journal_.set(file_.contexts[device_.ready_tail - 1].ready_next, index + 1);
  } else {
    journal_.set(device_.ready_head, index + 1);
    // Somebody waits now, so the ends of turns count: the present turn is one of a row without gaps.
    const uint64_t slice_ns = file_.settings.time_slice_ns;
    if (device_.busy_since_ns && device_.slice_end_ns < device_.now_ns) {
      const uint64_t passed_ns = device_.now_ns - device_.slice_end_ns;
      journal_.add(device_.slice_end_ns, (passed_ns + slice_ns - 1) / slice_ns * slice_ns);
    }
  }
  journal_.set(device_.ready_tail, index + 1);
}

// Precondition: somebody waits.
int Engine::pop_ready() {
  const int index = device_.ready_head - 1;
  remove_ready(index);
  return index;
}

void Engine::remove_ready(int index) {
  Context& context = file_.contexts[index];
  uint32_t before = 0;
  for (uint32_t at = device_.ready_head; at != static_cast<uint32_t>(index) + 1;) {
    before = at;
    at = file_.contexts[at - 1].ready_next;
  }
  if (before) {
    journal_.set(file_.contexts[before - 1].ready_next, context.ready_next);
  } else {
    journal_.set(device_.ready_head, context.ready_next);
  }
  if (device_.ready_tail == static_cast<uint32_t>(index) + 1) journal_.set(device_.ready_tail, before);
  journal_.set(context.in_ready_queue, 0);
}

// --- The copy engine.

void Engine::push_copy(int index, int channel) {
  Context& context = file_.contexts[index];
  const uint32_t lane = index * kChannelsPerContext + channel;
  journal_.add(context.copying, bit(channel));
  journal_.set(context.channels[channel].copy_next, 0);
  if (device_.copy_tail) {
    const uint32_t tail = device_.copy_tail - 1;
    journal_.set(file_.contexts[tail / kChannelsPerContext].channels[tail % kChannelsPerContext].copy_next,
                 lane + 1);
    journal_.set(device_.copy_tail, lane + 1);
  } else {
    journal_.set(device_.copy_head, lane + 1);
    journal_.set(device_.copy_tail, lane + 1);
    start_copy();
  }
}

void Engine::start_copy() {
  const uint32_t lane = device_.copy_head - 1;
  const WorkItem& copy = head(lane / kChannelsPerContext, lane % kChannelsPerContext);
  journal_.set(device_.copy_end_ns, device_.now_ns + copy.duration_ns);
}

void Engine::remove_copies(int index) {
  uint32_t before = 0;
  bool engine_was_ours = false;
  for (uint32_t at = device_.copy_head; at;) {
    const uint32_t lane = at - 1;
    const uint32_t next =
        file_.contexts[lane / kChannelsPerContext].channels[lane % kChannelsPerContext].copy_next;
    if (lane / kChannelsPerContext == static_cast<uint32_t>(index)) {
      if (before) {
        const uint32_t kept = before - 1;
        journal_.set(
            file_.contexts[kept / kChannelsPerContext].channels[kept % kChannelsPerContext].copy_next, next);
      } else {
        journal_.set(device_.copy_head, next);
        engine_was_ours = true;
      }
      if (device_.copy_tail == at) journal_.set(device_.copy_tail, before);
    } else {
      before = at;
    }
    at = next;
  }
  if (engine_was_ours && device_.copy_head) start_copy();
}

// --- The end of a context, and of a holder of the lock.

void Engine::drop_work(int index) {
  Context& context = file_.contexts[index];
  if (context.in_ready_queue) remove_ready(index);
  if (context.copying) remove_copies(index);
  if (device_.current == static_cast<uint32_t>(index) + 1) {
    stop_kernels(index);
    if (device_.switch_end_ns) {
      const uint64_t began_ns = device_.switch_end_ns - file_.settings.context_switch_ns;
      journal_.add(device_.switch_ns, device_.now_ns - began_ns);
      journal_.set(device_.switch_end_ns, 0);
    }
    journal_.set(device_.current, 0);
  }
  journal_.set(context.blocked, 0);
  journal_.set(context.held, 0);
  journal_.set(context.copying, 0);
  journal_.set(context.runnable, 0);
  for (Channel& channel : context.channels) {
    if (channel.completed != channel.submitted) journal_.set(channel.completed, channel.submitted);
  }
  dispatch();
}

void Engine::recover() {
  journal_.roll_back();
  const uint32_t device_plus_one = &device_ - file_.devices + 1;
  const int end = file_.context_end.load(std::memory_order_relaxed);
  for (int index = 0; index < end; ++index) {
    const Context& context = file_.contexts[index];
    if (context.device_plus_one.load(std::memory_order_relaxed) != device_plus_one ||
        !context.owner_plus_one) {
      continue;
    }
    examine(index, ~0u);
  }
  dispatch();
  commit();
}

// --- Busy time.

void Engine::settle_busy() {
  if (!device_.busy_since_ns) return;
  const uint64_t since_ns = device_.busy_since_ns, now_ns = device_.now_ns;
  Context& context = file_.contexts[device_.current - 1];
  Process& process = device_.processes[context.owner_plus_one - 1];
  add_busy(&device_.history, since_ns, now_ns);
  add_busy(&process.history, since_ns, now_ns);
  journal_.add(device_.busy_ns, now_ns - since_ns);
  journal_.add(process.busy_ns, now_ns - since_ns);
  journal_.set(device_.busy_since_ns, context.running ? now_ns : 0);
}

}  // namespace sim
