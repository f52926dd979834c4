// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "broker/delays.h"
#include "broker/slice_files.h"
#include "broker/unique_fd.h"
#include "broker/work_sum.h"
#include "limiter/arbiter.h"

namespace broker {

// Drives the arbiter of the node: one thread per slice sleeps on the slice's doorbell, one on a timer. The
// thread that was rung looks at the slice, asks the arbiter and writes the gates itself, so a hand-over is
// two futex wake-ups and no hop between threads. One mutex, held for microseconds: nothing under it logs or
// waits.
//
// A slice that rings without end slows only itself down: its thread sleeps when it has used up its budget of
// rings.
//
// Thread-safe. Called with the mutex held: `on_processes_changed` when a slice has more or fewer contexts
// than before, or processes in slots that use_slots() did not tell of; `on_damaged` when its files
// were found damaged (its gate is blocked then, and its thread has ended).
class Arbitration {
 public:
  struct Settings {
    limiter::Arbiter::Settings arbiter;
    // Work that may be outstanding in a turn with a deadline, and in one until further notice. The first is
    // what a wrong estimate can be late by; the second what a host may be kept from launching without the GPU
    // running dry, and bounds what is to drain when turns begin.
    uint64_t run_ahead_ns = 2'000'000;
    uint64_t standing_run_ahead_ns = 8'000'000;
  };

  Arbitration(const Settings& settings, std::function<void(limiter::SliceKey)> on_processes_changed,
              std::function<void(limiter::SliceKey)> on_damaged);
  ~Arbitration();
  Arbitration(const Arbitration&) = delete;
  Arbitration& operator=(const Arbitration&) = delete;

  // `files` must live until remove() has returned.
  void add(limiter::SliceKey key, const limiter::ArbiterTerms& terms, SliceFiles* files);
  void update(limiter::SliceKey key, const limiter::ArbiterTerms& terms);
  void remove(limiter::SliceKey key);

  // A process has joined: slots below this are looked at; only grows.
  void use_slots(limiter::SliceKey key, uint32_t slots);
  // Looks at the slice now, as if it had rung: a process has died.
  void look(limiter::SliceKey key);
  // No launches any more, for good.
  void block(limiter::SliceKey key);
  // Brings the accounts in all slices' `limits` up to date.
  void publish_accounts();
  // Where the slice's time went, up to now; see Delays.
  std::vector<Delays::Window> delays(limiter::SliceKey key);
  uint64_t handover_ns(limiter::SliceKey key);

 private:
  struct Entry;

  void listen(Entry& entry);
  void keep_time();
  bool on_ring(Entry& entry);
  void observe(Entry& entry, uint64_t now_ns);
  void decide(uint64_t now_ns);
  void beat(Entry& entry, uint64_t now_ns);
  void note_rates(Entry& entry, uint64_t now_ns);
  void note_delays(uint64_t now_ns);
  void publish(Entry& entry);
  void arm_timer();
  void block_locked(Entry& entry);

  const Settings settings_;
  const std::function<void(limiter::SliceKey)> on_processes_changed_;
  const std::function<void(limiter::SliceKey)> on_damaged_;

  std::mutex mutex_;  // guards everything below
  limiter::Arbiter arbiter_;
  std::map<limiter::SliceKey, std::unique_ptr<Entry>> entries_;
  std::vector<limiter::Command> commands_;
  Delays delays_;
  std::vector<Delays::Slice> standings_;
  uint64_t armed_ns_ = UINT64_MAX;

  UniqueFd timer_;
  std::atomic<bool> ending_{false};
  std::thread timer_thread_;
};

}  // namespace broker
