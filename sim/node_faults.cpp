// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <charconv>

#include "sim/locked_device.h"
#include "sim/node.h"

namespace sim {
namespace {

// This process' own, from its environment.
const Faults& own_faults() {
  static const Faults& faults = *new Faults([] {
    Faults parsed;
    std::string error;
    const char* text = getenv("SIMGPU_FAULT");
    if (text && !parse_faults(text, &parsed, &error))
      fprintf(stderr, "simgpu: SIMGPU_FAULT: %s\n", error.c_str());
    return parsed;
  }());
  return faults;
}

bool is_refused(const Faults& faults, std::atomic<uint64_t>& requests) {
  if (!faults.refuse_every && !faults.refuse_at) return false;
  const uint64_t number = requests.fetch_add(1, std::memory_order_relaxed) + 1;
  return number == faults.refuse_at || (faults.refuse_every && number % faults.refuse_every == 0);
}

}  // namespace

bool parse_faults(const std::string& text, Faults* faults, std::string* error) {
  *faults = {};
  if (text == "none") return true;
  struct {
    const char* name;
    uint32_t* value;
    bool has_number;
  } const kinds[] = {{"lost", &faults->lost, false},
                     {"no-memory-info", &faults->no_memory_info, false},
                     {"nvml-delay-us", &faults->nvml_delay_us, true},
                     {"refuse-every", &faults->refuse_every, true},
                     {"refuse-at", &faults->refuse_at, true}};
  for (size_t start = 0; start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string word = text.substr(start, comma - start);
    const size_t equals = word.find('=');
    bool known = false;
    for (const auto& kind : kinds) {
      if (word.substr(0, equals) != kind.name || kind.has_number != (equals != std::string::npos)) continue;
      *kind.value = 1;
      known = !kind.has_number;
      if (!kind.has_number) continue;
      const char* const end = word.data() + word.size();
      const auto [stopped, code] = std::from_chars(word.data() + equals + 1, end, *kind.value);
      known = code == std::errc() && stopped == end;
    }
    if (!known) {
      *error = "no fault '" + word +
               "': give none, or some of lost, no-memory-info, nvml-delay-us=N, refuse-every=N, refuse-at=N, "
               "with commas between";
      return false;
    }
    start = comma + 1;
  }
  return true;
}

Faults Node::faults(int device) const {
  const Faults& own = own_faults();
  const Faults& of_device = file_->devices[device].faults;
  return {.lost = own.lost | of_device.lost,
          .no_memory_info = own.no_memory_info | of_device.no_memory_info,
          .nvml_delay_us = own.nvml_delay_us + of_device.nvml_delay_us,
          .refuse_every = own.refuse_every ? own.refuse_every : of_device.refuse_every,
          .refuse_at = own.refuse_at ? own.refuse_at : of_device.refuse_at};
}

void Node::set_faults(int device, const Faults& faults) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  locked.device.faults = faults;
  locked.device.requests.store(0, std::memory_order_relaxed);
  locked.device.fault_changes.fetch_add(1, std::memory_order_release);
}

bool Node::request_is_refused(int device) {
  static std::atomic<uint64_t> own_requests;
  Device& state = file_->devices[device];
  return is_refused(own_faults(), own_requests) || is_refused(state.faults, state.requests);
}

bool Node::may_be_faulty(int device) const {
  return own_faults().lost || file_->devices[device].fault_changes.load(std::memory_order_acquire) != 0;
}

uint32_t Node::own_xid(int device) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  const int index = own_process(locked, false);
  return index < 0 ? 0 : locked.device.processes[index].xid;
}

bool Node::report_xid(int device, uint32_t xid, uint32_t pid) {
  {
    LockedDevice locked(*this, device, Sweep::kNow);
    bool found = pid == 0;
    for (uint64_t i = 0; pid && i < locked.device.process_end; ++i) {
      Process& process = locked.device.processes[i];
      if (process.pid != pid) continue;
      found = true;
      locked.journal.set(process.xid, xid);
      const int end = file_->context_end.load(std::memory_order_relaxed);
      for (int index = 0; index < end; ++index) {
        const Context& context = file_->contexts[index];
        const bool here = context.device_plus_one.load(std::memory_order_relaxed) == device + 1u;
        if (here && context.owner_plus_one == i + 1) locked.engine.drop_work(index);
      }
    }
    if (!found) return false;
    Device& state = locked.device;
    state.xids[state.xid_count % kXidsKept] = xid;
    state.xid_count += 1;
    state.fault_changes.fetch_add(1, std::memory_order_release);
    locked.wake_sleepers();
  }
  file_->events.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &file_->events, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  return true;
}

uint64_t Node::xid_count(int device) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  return locked.device.xid_count;
}

uint32_t Node::xid(int device, uint64_t number) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  return locked.device.xids[number % kXidsKept];
}

uint32_t Node::events() const { return file_->events.load(std::memory_order_acquire); }

void Node::wait_for_event(uint32_t seen, uint64_t until_ns) {
  const uint64_t now_ns = clock_ns();
  if (now_ns >= until_ns) return;
  timespec until = {};
  until.tv_sec = until_ns / 1'000'000'000;
  until.tv_nsec = until_ns % 1'000'000'000;
  syscall(SYS_futex, &file_->events, FUTEX_WAIT_BITSET, seen, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace sim
