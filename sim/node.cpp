// SPDX-License-Identifier: Apache-2.0
#include "sim/node.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <string>

#include "sim/engine.h"
#include "sim/layout.h"
#include "sim/node_file.h"
#include "sim/process.h"

namespace sim {
namespace {

constexpr uint64_t kSweepEveryNs = 1'000'000;
constexpr uint64_t kSpinBelowNs = 50'000;  // a sleep that short would end late by as much
constexpr uint64_t kWakeEarlyNs =
    25'000;  // of a longer sleep, the last part that is spun, so that it ends in time
constexpr uint64_t kRoomNs = 200'000;  // a full channel is waited for until so much of its work is done

uint64_t clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ull + now.tv_nsec;
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

void wake_sleepers(Device& device) {
  device.wake.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &device.wake, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

NodeFile* attach(std::string* error) {
  NodeSettings settings;
  const char* directory = getenv("SIMGPU_NODE");
  if (directory) {
    // What the node's file says holds, whatever this environment does.
    NodeFile* file = open_node(directory, error);
    if (file || !error->empty()) return file;
  }
  if (!settings_from_environment(&settings, error)) return nullptr;
  return directory ? open_or_create_node(directory, settings, error) : create_private_node(settings, error);
}

NodeFile* attach_or_say_why() {
  std::string error;
  NodeFile* file = attach(&error);
  if (!file) fprintf(stderr, "simgpu: no simulated GPU: %s\n", error.c_str());
  return file;
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

// A device under its lock, whole and at the present. What is done to it lasts from commit() or the end of
// this.
class Node::LockedDevice {
 public:
  LockedDevice(Node& node, int index, Sweep when)
      : index(index),
        device(node.file_->devices[index]),
        engine(*node.file_, index, node.model_->sm_count),
        journal(engine.journal()) {
    const bool holder_died = pthread_mutex_lock(&device.lock) == EOWNERDEAD;
    if (holder_died) {
      node.recover(*this);
      pthread_mutex_consistent(&device.lock);
    }
    // The clock is read with the lock held, so that the device's time is never ahead of it.
    const uint64_t now_ns = clock_ns();
    engine.advance(now_ns);
    bool is_due = holder_died || when == Sweep::kNow;
    if (!is_due && now_ns - device.swept_ns >= kSweepEveryNs) {
      is_due = when == Sweep::kIfDue || others_run(node);
    }
    if (is_due) {
      device.swept_ns = now_ns;
      node.sweep(*this);
    }
  }
  ~LockedDevice() {
    engine.commit();
    pthread_mutex_unlock(&device.lock);
  }
  LockedDevice(const LockedDevice&) = delete;
  LockedDevice& operator=(const LockedDevice&) = delete;

  const int index;
  Device& device;
  Engine engine;
  Journal& journal;

 private:
  bool others_run(const Node& node) const {
    if (device.ready_head) return true;
    return device.current && !node.is_ours(node.file_->contexts[device.current - 1]);
  }
};

Node& Node::get() {
  static Node* const node = new Node(attach_or_say_why());
  return *node;
}

Node::Node(NodeFile* file) : file_(file), model_(file ? find_gpu_model(file->settings.gpu) : &gpu_model(0)) {}

const NodeSettings& Node::settings() const {
  static const NodeSettings kNone = {.device_count = 0};
  return file_ ? file_->settings : kNone;
}

const GpuModel& Node::model(int) const { return *model_; }

void Node::uuid(int device, uint8_t out[16]) const {
  uint64_t seed = file_->identity + device;
  for (int half = 0; half < 2; ++half) {
    seed += 0x9e3779b97f4a7c15;  // splitmix64
    uint64_t value = seed;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    value ^= value >> 31;
    memcpy(out + half * 8, &value, 8);
  }
  out[6] = (out[6] & 0x0f) | 0x40;
  out[8] = (out[8] & 0x3f) | 0x80;
}

void Node::pci(int device, uint32_t* domain, uint32_t* bus, uint32_t* dev) const {
  *domain = 0;
  *bus = 0x10 + device * 8;
  *dev = 0;
}

// --- Processes.

bool Node::is_ours(const Context& context) const {
  const uint32_t device = context.device_plus_one.load(std::memory_order_relaxed);
  if (!device || !context.owner_plus_one) return false;
  const Process& owner = file_->devices[device - 1].processes[context.owner_plus_one - 1];
  return owner.pid == this_process().pid && owner.image == this_process().image;
}

// This process' entry of the device; -1: it has none, and none could be or was to be made.
int Node::own_process(LockedDevice& locked, bool make) {
  Device& device = locked.device;
  const ProcessIdentity& self = this_process();
  int free_entry = -1;
  for (uint64_t i = 0; i < device.process_end; ++i) {
    Process& process = device.processes[i];
    if (process.pid == self.pid) {
      if (process.start_time == self.start_time && process.image == self.image) return i;
      remove_process(locked, i);
    }
    if (process.pid == 0 && free_entry < 0) free_entry = i;
  }
  if (!make) return -1;
  if (free_entry < 0) {
    if (device.process_end == kMaxProcesses) return -1;
    free_entry = device.process_end;
    locked.journal.add(device.process_end, 1);
  }
  Process& process = device.processes[free_entry];
  locked.journal.set(process.memory_bytes, 0);
  locked.journal.set(process.contexts, 0);
  locked.journal.set(process.busy_ns, 0);
  process.history = {};
  locked.journal.set(process.start_time, self.start_time);
  locked.journal.set(process.image, self.image);
  locked.journal.set(process.pid, self.pid);
  return free_entry;
}

// Removes the processes that are no more, and what they had.
void Node::sweep(LockedDevice& locked) {
  const ProcessIdentity& self = this_process();
  for (uint64_t i = 0; i < locked.device.process_end; ++i) {
    const Process& process = locked.device.processes[i];
    if (process.pid == 0) continue;
    // This process' entry may be that of the program it was before execve.
    const bool is_gone =
        process.pid == self.pid ? process.image != self.image : !is_alive(process.pid, process.start_time);
    if (is_gone) remove_process(locked, i);
  }
}

void Node::remove_process(LockedDevice& locked, int index) {
  Process& process = locked.device.processes[index];
  const int end = file_->context_end.load(std::memory_order_relaxed);
  for (int i = 0; process.contexts > 0 && i < end; ++i) {
    const Context& context = file_->contexts[i];
    const bool here = context.device_plus_one.load(std::memory_order_relaxed) == locked.index + 1u;
    if (here && context.owner_plus_one == index + 1u) remove_context(locked, i);
  }
  locked.journal.add(locked.device.used_bytes, -process.memory_bytes);
  locked.journal.set(process.memory_bytes, 0);
  locked.journal.set(process.pid, 0);
  locked.engine.commit();
  wake_sleepers(locked.device);
}

// After the death of who held the lock. Entries of contexts that were being made or given back are nobody's.
void Node::recover(LockedDevice& locked) {
  locked.engine.recover();
  const int end = file_->context_end.load(std::memory_order_relaxed);
  for (int i = 0; i < end; ++i) {
    Context& context = file_->contexts[i];
    const bool here = context.device_plus_one.load(std::memory_order_relaxed) == locked.index + 1u;
    if (here && !context.owner_plus_one) context.device_plus_one.store(0, std::memory_order_release);
  }
}

// --- Memory.

// Whether the device has so much left, the dead processes' memory included.
bool Node::has_memory(LockedDevice& locked, uint64_t bytes) {
  const auto fits = [&] { return bytes <= model_->memory_bytes - locked.device.used_bytes; };
  if (fits()) return true;
  sweep(locked);
  return fits();
}

bool Node::take_memory(int device, uint64_t bytes) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  if (!has_memory(locked, bytes)) return false;
  const int process = own_process(locked, true);
  if (process < 0) return false;
  locked.journal.add(locked.device.processes[process].memory_bytes, bytes);
  locked.journal.add(locked.device.used_bytes, bytes);
  return true;
}

void Node::give_memory(int device, uint64_t bytes) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  const int index = own_process(locked, false);
  if (index < 0) return;
  Process& process = locked.device.processes[index];
  bytes = std::min(bytes, process.memory_bytes - process.contexts * file_->settings.context_bytes);
  locked.journal.add(process.memory_bytes, -bytes);
  locked.journal.add(locked.device.used_bytes, -bytes);
}

MemoryInfo Node::memory(int device) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  return {model_->memory_bytes, model_->reserved_bytes, locked.device.used_bytes};
}

// --- Contexts.

ContextId Node::create_context(int device) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  const uint64_t bytes = file_->settings.context_bytes;
  if (!has_memory(locked, bytes)) return kNoContext;
  const int process = own_process(locked, true);
  if (process < 0) return kNoContext;
  for (int index = 0; index < kMaxContexts; ++index) {
    Context& context = file_->contexts[index];
    uint32_t free_entry = 0;
    if (context.device_plus_one.load(std::memory_order_relaxed) != 0) continue;
    uint32_t end = file_->context_end.load(std::memory_order_relaxed);
    while (end <= static_cast<uint32_t>(index) && !file_->context_end.compare_exchange_weak(end, index + 1)) {
    }
    if (!context.device_plus_one.compare_exchange_strong(free_entry, device + 1)) continue;

    // Nobody looks at the rest before it has an owner.
    context.generation += 1;
    context.ready_next = context.in_ready_queue = 0;
    context.blocked = context.held = context.copying = context.runnable = context.running = 0;
    memset(context.channels, 0, sizeof(context.channels));
    locked.journal.set(context.owner_plus_one, process + 1);
    locked.journal.add(locked.device.processes[process].contexts, 1);
    locked.journal.add(locked.device.processes[process].memory_bytes, bytes);
    locked.journal.add(locked.device.used_bytes, bytes);
    delete marker_times_[index];
    marker_times_[index] = nullptr;
    return index;
  }
  return kNoContext;
}

void Node::destroy_context(ContextId id) {
  if (id < 0 || id >= kMaxContexts) return;
  const uint32_t device = file_->contexts[id].device_plus_one.load(std::memory_order_relaxed);
  if (!device) return;
  LockedDevice locked(*this, device - 1, Sweep::kIfOthersRun);
  if (!is_ours(file_->contexts[id])) return;
  remove_context(locked, id);
  wake_sleepers(locked.device);
}

void Node::remove_context(LockedDevice& locked, int index) {
  Context& context = file_->contexts[index];
  Process& owner = locked.device.processes[context.owner_plus_one - 1];
  locked.engine.drop_work(index);
  const uint64_t bytes = file_->settings.context_bytes;
  locked.journal.set(context.owner_plus_one, 0);
  locked.journal.add(owner.contexts, -1);
  locked.journal.add(owner.memory_bytes, -bytes);
  locked.journal.add(locked.device.used_bytes, -bytes);
  locked.engine.commit();
  // Gives back the host memory of the rings; that they then read as zeroes matters to nobody.
  madvise(file_->rings[index], sizeof(file_->rings[index]), MADV_REMOVE);
  context.device_plus_one.store(0, std::memory_order_release);
}

// --- Work.

namespace {

bool in_range(ContextId context, int channel) {
  return context >= 0 && context < kMaxContexts && channel >= 0 && channel < kChannelsPerContext;
}

}  // namespace

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
  wake_sleepers(locked.device);
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

// --- What NVML shows.

void Node::remove_dead_processes(int device) { LockedDevice locked(*this, device, Sweep::kNow); }

int Node::processes(int device, ProcessUse* out, int capacity) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  locked.engine.settle_busy();
  int count = 0;
  for (uint64_t i = 0; i < locked.device.process_end; ++i) {
    const Process& process = locked.device.processes[i];
    if (process.pid == 0 || process.contexts == 0) continue;
    if (count < capacity)
      out[count] = {static_cast<uint32_t>(process.pid), process.memory_bytes, process.busy_ns};
    ++count;
  }
  return count;
}

DeviceUse Node::device_use(int device) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  locked.engine.settle_busy();
  return {locked.device.busy_ns, locked.device.switch_ns, locked.device.switches};
}

uint32_t Node::utilization_percent(int device, uint64_t window_ns) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  locked.engine.settle_busy();
  return locked.engine.busy_percent(locked.device.history, window_ns);
}

uint32_t Node::process_utilization_percent(int device, uint32_t pid, uint64_t window_ns) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  locked.engine.settle_busy();
  for (uint64_t i = 0; i < locked.device.process_end; ++i) {
    const Process& process = locked.device.processes[i];
    if (process.pid == pid) return locked.engine.busy_percent(process.history, window_ns);
  }
  return 0;
}

}  // namespace sim
