// SPDX-License-Identifier: Apache-2.0
#include "broker/arbitration.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "broker/clock.h"
#include "broker/futex.h"
#include "broker/gate_line.h"
#include "broker/rates.h"

namespace broker {
namespace {

constexpr uint64_t kBeatNs = 100'000'000;
constexpr uint64_t kStrangersNs = 1'000'000'000;

// A ring costs its slice this much of its time budget; a slice rings some hundred times a second when it is
// well.
constexpr uint64_t kRingCostNs = 50'000;
constexpr uint64_t kRingBurstNs = 100'000'000;
constexpr uint64_t kRingPenaltyNs = 1'000'000;

// Interrupts the futex wait of a thread that has to end and whose doorbell may be gone with the file.
const int kEndSignal = SIGRTMIN;

void install_end_signal() {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  sigaction(kEndSignal, &action, nullptr);  // without SA_RESTART
}

void sleep_ns(uint64_t ns) {
  const timespec time = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  nanosleep(&time, nullptr);
}

void begin_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
  prctl(PR_SET_TIMERSLACK, 1'000);
  // A hand-over waits for this thread, which then runs for microseconds: ahead of whatever keeps the
  // processors busy, where we may (root, or a limit that allows it).
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), -15);
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, kEndSignal);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

class RingBudget {
 public:
  // false: used up.
  bool take(uint64_t now) {
    left_ns_ = std::min(kRingBurstNs, left_ns_ + (now - last_ns_));
    last_ns_ = now;
    if (left_ns_ < kRingCostNs) return false;
    left_ns_ -= kRingCostNs;
    return true;
  }

 private:
  uint64_t left_ns_ = kRingBurstNs;
  uint64_t last_ns_ = now_ns();
};

}  // namespace

struct Arbitration::Entry {
  limiter::SliceKey key = 0;
  SliceFiles* files = nullptr;
  uint32_t slots = 0;
  WorkSum work;
  limiter::Observation seen;
  Rates rates;
  bool open = false;        // nothing is counted
  bool timed_turn = false;  // holds a turn that has a deadline
  bool blocked = false;
  uint64_t beat_ns = 0;
  uint64_t strangers_ns = 0;  // when they were last reported
  uint32_t measure_requests = 0;

  std::atomic<bool> end{false};
  std::atomic<bool> ended{false};
  std::thread thread;

  bool needs_beat() const { return !blocked && (seen.waiting || timed_turn); }

  void join() {
    end.store(true);
    while (!ended.load()) {
      files->state().doorbell.rings.fetch_add(1);
      futex_wake(files->state().doorbell.rings);
      pthread_kill(thread.native_handle(), kEndSignal);
      sleep_ns(100'000);
    }
    thread.join();
  }
};

Arbitration::Arbitration(const Settings& settings,
                         std::function<void(limiter::SliceKey)> on_processes_changed,
                         std::function<void(limiter::SliceKey)> on_damaged)
    : settings_(settings),
      on_processes_changed_(std::move(on_processes_changed)),
      on_damaged_(std::move(on_damaged)),
      arbiter_(settings.arbiter),
      delays_(settings.arbiter.quantum_ns / 4),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
  install_end_signal();
  timer_thread_ = std::thread([this] { keep_time(); });
}

Arbitration::~Arbitration() {
  ending_.store(true);
  const itimerspec at_once = {.it_interval = {}, .it_value = {0, 1}};
  timerfd_settime(timer_.get(), 0, &at_once, nullptr);
  timer_thread_.join();
  // Gates stay as they are: their slices live on, and a new broker takes them over.
  for (auto& [key, entry] : entries_) entry->join();
}

void Arbitration::add(limiter::SliceKey key, const limiter::ArbiterTerms& terms, SliceFiles* files) {
  const std::lock_guard lock(mutex_);
  auto owned = std::make_unique<Entry>();
  Entry& entry = *owned;
  entry.key = key;
  entry.files = files;
  entries_[key] = std::move(owned);

  const uint64_t now = now_ns();
  files->limits().heartbeat.broker_pid.store(static_cast<uint32_t>(getpid()), std::memory_order_relaxed);
  // The arbiter begins with a parked slice, whatever another broker left in its gate.
  write_gate(files->limits().gate, {key, limiter::Mode::kParked, 0, true}, settings_.run_ahead_ns);
  arbiter_.set(key, terms, now);
  observe(entry, now);
  decide(now);
  entry.thread = std::thread([this, &entry] { listen(entry); });
}

void Arbitration::update(limiter::SliceKey key, const limiter::ArbiterTerms& terms) {
  const std::lock_guard lock(mutex_);
  const uint64_t now = now_ns();
  arbiter_.set(key, terms, now);
  decide(now);
}

void Arbitration::remove(limiter::SliceKey key) {
  std::unique_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    entry = std::move(found->second);
    entries_.erase(found);
    arbiter_.remove(key);
    delays_.remove(key);
    decide(now_ns());
  }
  entry->join();
}

void Arbitration::use_slots(limiter::SliceKey key, uint32_t slots) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  Entry& entry = *found->second;
  entry.slots = std::max(entry.slots, slots);
  const uint64_t now = now_ns();
  observe(entry, now);
  decide(now);
}

void Arbitration::look(limiter::SliceKey key) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  const uint64_t now = now_ns();
  observe(*found->second, now);
  decide(now);
}

void Arbitration::block(limiter::SliceKey key) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  block_locked(*found->second);
  decide(now_ns());
}

void Arbitration::publish_accounts() {
  const std::lock_guard lock(mutex_);
  const uint64_t now = now_ns();
  for (auto& [key, entry] : entries_) observe(*entry, now);
  decide(now);
  for (auto& [key, entry] : entries_) publish(*entry);
}

std::vector<Delays::Window> Arbitration::delays(limiter::SliceKey key) {
  const std::lock_guard lock(mutex_);
  const uint64_t now = now_ns();
  for (auto& [each, entry] : entries_) observe(*entry, now);
  decide(now);
  return delays_.windows(key);
}

uint64_t Arbitration::handover_ns(limiter::SliceKey key) {
  const std::lock_guard lock(mutex_);
  return delays_.handover_ns(key);
}

// The thread of one slice's doorbell.
void Arbitration::listen(Entry& entry) {
  begin_thread("doorbell");
  const shm::Shared<uint32_t>& rings = entry.files->state().doorbell.rings;
  RingBudget budget;
  while (!entry.end.load()) {
    // Read before looking: what is rung in while we look is seen by the wait.
    const uint32_t seen = rings.load(std::memory_order_acquire);
    if (!on_ring(entry)) break;
    if (!budget.take(now_ns())) sleep_ns(kRingPenaltyNs);
    futex_wait(rings, seen);
  }
  entry.ended.store(true);
}

// false: this doorbell is of no use any more.
bool Arbitration::on_ring(Entry& entry) {
  const std::lock_guard lock(mutex_);
  // remove() has taken the entry away already when this is set; its files are still there until we have
  // ended.
  if (entry.end.load()) return false;
  const uint64_t now = now_ns();
  observe(entry, now);
  decide(now);
  return !entry.files->damaged();
}

void Arbitration::keep_time() {
  begin_thread("turns");
  while (!ending_.load()) {
    uint64_t expirations;
    if (read(timer_.get(), &expirations, sizeof expirations) < 0 && errno != EINTR) return;
    const std::lock_guard lock(mutex_);
    armed_ns_ = UINT64_MAX;
    const uint64_t now = now_ns();
    // Not every launch rings: whether a holder is idle or still at work has to be looked at.
    for (auto& [key, entry] : entries_) observe(*entry, now);
    decide(now);
  }
}

void Arbitration::observe(Entry& entry, uint64_t now) {
  if (entry.blocked) return;
  const shm::Limits& limits = entry.files->limits();
  const uint32_t contexts = entry.seen.contexts;
  entry.seen = entry.work.read(entry.files->state(), entry.slots,
                               limits.gate.turn.load(std::memory_order_relaxed), now);
  if (entry.files->damaged()) {
    block_locked(entry);
    on_damaged_(entry.key);
    return;
  }
  arbiter_.observe(entry.key, entry.seen, now);
  // A slot in use that we were not told of: its process did not reach the attach socket.
  const uint32_t slots = std::min<uint32_t>(entry.files->state().header.slots_high.load(), shm::kMaxSlots);
  const bool strangers = slots > entry.slots && now - entry.strangers_ns > kStrangersNs;
  if (strangers) entry.strangers_ns = now;
  const uint32_t requests = entry.files->state().doorbell.measure_requests.load(std::memory_order_relaxed);
  const bool requested = requests != entry.measure_requests;
  entry.measure_requests = requests;
  if (strangers || requested || entry.seen.contexts != contexts) on_processes_changed_(entry.key);
}

void Arbitration::decide(uint64_t now) {
  commands_.clear();
  arbiter_.step(now, &commands_);
  for (const limiter::Command& command : commands_) {
    const auto found = entries_.find(command.slice);
    if (found == entries_.end() || found->second->blocked) continue;
    Entry& entry = *found->second;
    entry.open = command.mode == limiter::Mode::kOpen;
    entry.timed_turn = command.mode == limiter::Mode::kTurn && command.deadline_ns != shm::kNoDeadline;
    write_gate(entry.files->limits().gate, command,
               entry.timed_turn ? settings_.run_ahead_ns : settings_.standing_run_ahead_ns);
  }
  for (const limiter::Command& command : commands_) {
    const auto found = entries_.find(command.slice);
    if (found != entries_.end()) publish(*found->second);
  }
  note_delays(now);
  for (auto& [key, entry] : entries_) {
    beat(*entry, now);
    note_rates(*entry, now);
  }
  arm_timer();
}

void Arbitration::beat(Entry& entry, uint64_t now) {
  if (!entry.needs_beat() || now - entry.beat_ns < kBeatNs) return;
  entry.beat_ns = now;
  entry.files->limits().heartbeat.beat_ns.store(now, std::memory_order_release);
  publish(entry);
}

// Once a second while the slice has work, and once after; what an open gate lets through is not known.
void Arbitration::note_rates(Entry& entry, uint64_t now) {
  if (entry.blocked || !entry.rates.due(now)) return;
  const limiter::Account account = arbiter_.account(entry.key);
  if (entry.rates.settled() && !entry.rates.moved(account.wanted_ns)) return;
  entry.rates.note(account.held_ns, account.wanted_ns, now);
  shm::Share& share = entry.files->limits().share;
  share.received_rates.store(entry.rates.received_word(), std::memory_order_relaxed);
  share.wanted_rates.store(entry.rates.wanted_word(), std::memory_order_relaxed);
  const auto at_s = static_cast<uint32_t>(now / 1'000'000'000);
  share.rates_at_s.store(entry.open ? 0 : at_s, std::memory_order_release);
}

void Arbitration::note_delays(uint64_t now) {
  standings_.clear();
  for (const auto& [key, entry] : entries_) {
    const limiter::Account account = arbiter_.account(key);
    standings_.push_back({key, arbiter_.standing(key), account.held_ns, account.wanted_ns});
  }
  delays_.advance(standings_, now);
}

void Arbitration::publish(Entry& entry) {
  const limiter::Account account = arbiter_.account(entry.key);
  shm::Share& share = entry.files->limits().share;
  share.held_ns.store(account.held_ns, std::memory_order_relaxed);
  share.waited_ns.store(account.waited_ns, std::memory_order_relaxed);
  share.turns.store(account.turns, std::memory_order_relaxed);
  share.overruns.store(account.overruns, std::memory_order_relaxed);
}

void Arbitration::arm_timer() {
  uint64_t next_ns = arbiter_.next_wake_ns();
  for (const auto& [key, entry] : entries_) {
    if (entry->needs_beat()) next_ns = std::min(next_ns, entry->beat_ns + kBeatNs);
    if (!entry->blocked && !entry->rates.settled()) next_ns = std::min(next_ns, entry->rates.due_ns());
  }
  if (next_ns == armed_ns_) return;
  armed_ns_ = next_ns;
  itimerspec when = {};  // zero disarms
  if (next_ns != UINT64_MAX) {
    when.it_value.tv_sec = static_cast<time_t>(next_ns / 1'000'000'000);
    when.it_value.tv_nsec = static_cast<long>(next_ns % 1'000'000'000);
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void Arbitration::block_locked(Entry& entry) {
  entry.blocked = true;
  entry.timed_turn = false;
  block_gate(entry.files->limits().gate);
  arbiter_.remove(entry.key);
}

}  // namespace broker
