// SPDX-License-Identifier: Apache-2.0
//
// A discrete-event model of one GPU, of slices that launch on it, and of the broker's loop around
// limiter::Arbiter, on a fake clock. The GPU time-slices between contexts as the driver does without MPS;
// slices follow the gate's protocol with estimates of their kernels as good as they are set to be; a sleeping
// slice notices a grant `wake_ns` late. Seconds of GPU time take milliseconds, and a run is the same every
// time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <vector>

#include "limiter/admission.h"
#include "limiter/arbiter.h"
#include "limiter/kernel_estimates.h"

namespace model {

constexpr uint64_t kMicrosecond = 1'000;
constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kNever = UINT64_MAX;

class Clock {
 public:
  uint64_t now_ns() const { return now_ns_; }

  void at(uint64_t time_ns, std::function<void()> action) {
    events_.push({std::max(time_ns, now_ns_), next_++, std::move(action)});
  }

  void run_until(uint64_t end_ns) {
    while (!events_.empty() && events_.top().time_ns <= end_ns) {
      const Event event = events_.top();
      events_.pop();
      now_ns_ = event.time_ns;
      event.action();
    }
    now_ns_ = end_ns;
  }

 private:
  struct Event {
    uint64_t time_ns, order;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };
  std::priority_queue<Event> events_;
  uint64_t now_ns_ = 0, next_ = 0;
};

// Runs one kernel at a time; round robin between contexts that have work, `slice_ns` each, `switch_ns` lost
// between.
class Gpu {
 public:
  Gpu(Clock& clock, uint64_t slice_ns, uint64_t switch_ns)
      : clock_(clock), slice_ns_(slice_ns), switch_ns_(switch_ns) {}

  // `done` is told of each kernel's length, and of when it first ran.
  using Done = std::function<void(uint64_t kernel_ns, uint64_t begun_ns)>;

  int add_context(Done done) {
    contexts_.push_back({{}, std::move(done), 0});
    return static_cast<int>(contexts_.size()) - 1;
  }

  void launch(int context, uint64_t kernel_ns) {
    contexts_[context].queue.push_back({kernel_ns, kernel_ns, kNever});
    reschedule();
  }

  uint64_t busy_ns(int context) const { return contexts_[context].busy_ns; }

 private:
  struct Kernel {
    uint64_t length_ns, left_ns, begun_ns;
  };
  struct Context {
    std::deque<Kernel> queue;
    Done done;
    uint64_t busy_ns;
  };
  enum class Doing { kNothing, kSwitching, kRunning };

  void pause() {
    if (doing_ == Doing::kRunning) {
      const uint64_t ran_ns = clock_.now_ns() - run_start_ns_;
      contexts_[current_].queue.front().left_ns -= ran_ns;
      contexts_[current_].busy_ns += ran_ns;
    }
    doing_ = Doing::kNothing;
    version_++;
  }

  int next_context() const {
    const int count = static_cast<int>(contexts_.size());
    const bool here = current_ >= 0 && !contexts_[current_].queue.empty();
    if (here && clock_.now_ns() < slice_start_ns_ + slice_ns_) return current_;
    for (int step = 1; step <= count; step++) {
      const int other = (std::max(current_, 0) + step) % count;
      if (other != current_ && !contexts_[other].queue.empty()) return other;
    }
    return here ? current_ : -1;
  }

  void reschedule() {
    if (doing_ == Doing::kSwitching) return;
    pause();
    const int next = next_context();
    if (next < 0) return;
    const uint64_t version = version_;
    if (next != current_ && current_ >= 0) {
      current_ = next;
      doing_ = Doing::kSwitching;
      clock_.at(clock_.now_ns() + switch_ns_, [this, version] {
        if (version != version_) return;
        doing_ = Doing::kNothing;
        slice_start_ns_ = clock_.now_ns();
        reschedule();
      });
      return;
    }
    if (next != current_ || clock_.now_ns() >= slice_start_ns_ + slice_ns_) slice_start_ns_ = clock_.now_ns();
    current_ = next;
    doing_ = Doing::kRunning;
    run_start_ns_ = clock_.now_ns();
    Kernel& kernel = contexts_[current_].queue.front();
    kernel.begun_ns = std::min(kernel.begun_ns, run_start_ns_);
    const uint64_t done_ns = run_start_ns_ + kernel.left_ns;
    clock_.at(std::min(done_ns, slice_start_ns_ + slice_ns_), [this, version] {
      if (version != version_) return;
      pause();
      Context& context = contexts_[current_];
      if (context.queue.front().left_ns == 0) {
        const Kernel kernel = context.queue.front();
        context.queue.pop_front();
        context.done(kernel.length_ns, kernel.begun_ns);
      }
      reschedule();
    });
  }

  Clock& clock_;
  const uint64_t slice_ns_, switch_ns_;
  std::vector<Context> contexts_;
  Doing doing_ = Doing::kNothing;
  int current_ = -1;
  uint64_t slice_start_ns_ = 0, run_start_ns_ = 0, version_ = 0;
};

struct Load {
  std::function<uint64_t()> kernel_ns;  // length of the next kernel
  bool synchronous = false;             // waits for each kernel, then for gap_ns, before the next launch
  uint64_t gap_ns = 0;
  double estimate_factor = 1;  // how wrong the slice's estimates are
  // > 0: what the slice takes every kernel for, as for one function whose kernels differ in length.
  uint64_t same_estimate_ns = 0;
  bool one_function = false;  // the slice learns its estimate as processes do, of all kernels together
  // > 0: asks for so many kernels at a time, at intervals that vary by a tenth around period_ns; a request is
  // taken up when the one before it is done.
  int burst = 0;
  uint64_t period_ns = 0;
};

inline Load saturating(uint64_t kernel_ns) {
  return {[kernel_ns] { return kernel_ns; }};
}
inline Load launch_sync(uint64_t kernel_ns, uint64_t gap_ns) {
  return {[kernel_ns] { return kernel_ns; }, true, gap_ns};
}

inline Load requests(int burst, uint64_t kernel_ns, uint64_t period_ns) {
  Load load = saturating(kernel_ns);
  load.burst = burst;
  load.period_ns = period_ns;
  return load;
}

class Node;

// One slice with one process and one stream.
class Tenant {
 public:
  Tenant(Node& node, limiter::SliceKey key, std::vector<Gpu*> gpus, Load load);
  void start();
  void stop() { running_ = false; }  // launches no more
  void freeze() { frozen_ = true; }  // SIGSTOP: does nothing any more, what it said stays
  void apply(const limiter::Command& command);
  limiter::Observation observation() const;
  uint64_t busy_ns() const { return gpus_[0]->busy_ns(contexts_[0]); }
  uint64_t launches() const { return launches_; }
  // From a request to the end of its last kernel.
  const std::vector<uint64_t>& latencies_ns() const { return latencies_ns_; }

 private:
  friend class Node;
  struct Kernel {
    uint64_t estimate_ns;
    bool measured;
  };
  Kernel expect(uint64_t kernel_ns) {
    if (estimates_ != nullptr) {
      const limiter::KernelEstimates::Estimate estimate = estimates_->expect(1);
      return {estimate.ns, estimate.wants_sample};
    }
    if (load_.same_estimate_ns > 0) return {load_.same_estimate_ns, false};
    return {static_cast<uint64_t>(load_.estimate_factor * static_cast<double>(kernel_ns)), false};
  }
  limiter::Backlog backlog() const {
    const uint64_t oldest_ns = outstanding_.empty() ? 0 : outstanding_.front().estimate_ns;
    return {outstanding_ns_, static_cast<uint32_t>(outstanding_.size()), oldest_ns, progress_ns_};
  }
  void prepare() {
    next_kernel_ns_ = load_.kernel_ns();
    next_ = expect(next_kernel_ns_);
  }
  void look_again();
  void pump();
  void launch();
  void on_done(uint64_t begun_ns);
  void request();
  void wait(bool closing);

  Node& node_;
  const limiter::SliceKey key_;
  std::vector<Gpu*> gpus_;
  std::vector<int> contexts_;
  Load load_;
  bool running_ = false, frozen_ = false, launching_ = false, syncing_ = false;
  bool waiting_ = false, closing_ = false;
  limiter::Command told_{0, limiter::Mode::kParked, kNever, true};
  std::unique_ptr<limiter::KernelEstimates> estimates_;
  limiter::Readmission readmission_;
  uint64_t look_again_ns_ = kNever;
  std::deque<Kernel> outstanding_;
  uint64_t outstanding_ns_ = 0;  // what all of it is taken for
  uint64_t next_kernel_ns_ = 0;
  Kernel next_ = {};
  size_t parts_done_ = 0;
  uint64_t drained_ns_ = 0, drain_expected_ns_ = 0, occupied_ns_ = 0, launches_ = 0;
  uint64_t active_ns_ = 0, active_since_ns_ = 0, last_end_ns_ = 0, progress_ns_ = 0;
  int unlaunched_ = 0;  // of the request under way
  uint64_t requested_ns_ = kNever;
  std::vector<uint64_t> latencies_ns_;
};

class Node {
 public:
  struct Settings {
    uint64_t slice_ns = 2 * kMillisecond, switch_ns = 100 * kMicrosecond;
    uint64_t wake_ns = 50 * kMicrosecond, launch_ns = 4 * kMicrosecond, run_ahead_ns = 2 * kMillisecond;
    int gpus = 1;
    bool sliced = true;  // false: no gates, as without cuslice
    limiter::Arbiter::Settings arbiter;
  };

  Node() : Node(Settings()) {}
  explicit Node(const Settings& settings) : settings(settings), arbiter(settings.arbiter) {
    for (int i = 0; i < settings.gpus; i++) {
      gpus_.push_back(std::make_unique<Gpu>(clock, settings.slice_ns, settings.switch_ns));
    }
  }

  Tenant& add(uint32_t percent, Load load, uint32_t cap_percent = 100, uint64_t gpu_mask = 1,
              bool latency = false) {
    const limiter::SliceKey key = tenants_.size() + 1;
    arbiter.set(key, {gpu_mask, percent, cap_percent, latency}, clock.now_ns());
    std::vector<Gpu*> used;
    for (size_t i = 0; i < gpus_.size(); i++) {
      if (gpu_mask >> i & 1) used.push_back(gpus_[i].get());
    }
    tenants_.push_back(std::make_unique<Tenant>(*this, key, used, std::move(load)));
    return *tenants_.back();
  }

  // As a daemon does that is told of other terms.
  void set(const Tenant& tenant, const limiter::ArbiterTerms& terms) {
    arbiter.set(tenant.key_, terms, clock.now_ns());
    ring();
  }

  void observe() {
    for (auto& tenant : tenants_) arbiter.observe(tenant->key_, tenant->observation(), clock.now_ns());
  }

  // The broker's reaction to a ring of one tenant, which it then looks at, or to its timer: it looks at all.
  void ring(const Tenant* who = nullptr) {
    if (!settings.sliced) return;
    for (int pass = 0; pass < 2; pass++) {
      for (auto& tenant : tenants_) {
        if (who == nullptr || who == tenant.get())
          arbiter.observe(tenant->key_, tenant->observation(), clock.now_ns());
      }
      commands_.clear();
      arbiter.step(clock.now_ns(), &commands_);
      for (const limiter::Command& command : commands_) tenants_[command.slice - 1]->apply(command);
      if (commands_.empty()) break;
    }
    const uint64_t wake_ns = arbiter.next_wake_ns();
    if (wake_ns == kNever || wake_ns >= timer_ns_) return;
    timer_ns_ = wake_ns;
    clock.at(wake_ns, [this, wake_ns] {
      if (timer_ns_ == wake_ns) timer_ns_ = kNever;
      ring();
    });
  }

  // GPU time of all tenants.
  uint64_t busy_ns() const {
    uint64_t sum_ns = 0;
    for (const auto& tenant : tenants_) sum_ns += tenant->busy_ns();
    return sum_ns;
  }
  uint64_t turns() const {
    uint64_t sum = 0;
    for (const auto& tenant : tenants_) sum += arbiter.account(tenant->key_).turns;
    return sum;
  }

  Settings settings;
  Clock clock;
  limiter::Arbiter arbiter;
  std::mt19937 random{20261130};

 private:
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<std::unique_ptr<Tenant>> tenants_;
  std::vector<limiter::Command> commands_;
  uint64_t timer_ns_ = kNever;
};

inline Tenant::Tenant(Node& node, limiter::SliceKey key, std::vector<Gpu*> gpus, Load load)
    : node_(node), key_(key), gpus_(std::move(gpus)), load_(std::move(load)) {
  // A kernel of a slice with several GPUs runs on all of them (an all-reduce): done when the last part is.
  for (Gpu* gpu : gpus_) {
    contexts_.push_back(gpu->add_context([this](uint64_t, uint64_t begun_ns) {
      if (++parts_done_ < gpus_.size()) return;
      parts_done_ = 0;
      on_done(begun_ns);
    }));
  }
  if (!node.settings.sliced) told_.mode = limiter::Mode::kOpen;
  if (load_.one_function) estimates_ = std::make_unique<limiter::KernelEstimates>();
}

inline void Tenant::start() {
  running_ = true;
  prepare();
  node_.ring();
  if (load_.burst > 0) request();
  pump();
}

inline void Tenant::request() {
  if (!running_) return;
  if (requested_ns_ == kNever) {
    requested_ns_ = node_.clock.now_ns();
    unlaunched_ = load_.burst;
    pump();
  }
  const uint64_t tenth = load_.period_ns / 10;
  node_.clock.at(node_.clock.now_ns() + load_.period_ns - tenth + node_.random() % (2 * tenth),
                 [this] { request(); });
}

inline limiter::Observation Tenant::observation() const {
  limiter::Observation seen;
  seen.contexts = running_ || !outstanding_.empty() ? 1 : 0;
  seen.waiting = waiting_;
  seen.outstanding = !outstanding_.empty();
  seen.closing = closing_;
  seen.drain_expected_ns = drain_expected_ns_;
  seen.drained_ns = drained_ns_;
  seen.occupied_ns = occupied_ns_;
  seen.active_ns = active_ns_ + (outstanding_.empty() ? 0 : node_.clock.now_ns() - active_since_ns_);
  return seen;
}

inline void Tenant::apply(const limiter::Command& command) {
  told_ = command;
  closing_ = false;
  if (!waiting_ || frozen_) return;
  node_.clock.at(node_.clock.now_ns() + node_.settings.wake_ns, [this] {
    if (frozen_ || !waiting_ || told_.mode == limiter::Mode::kParked) return;
    waiting_ = false;
    pump();
  });
}

inline void Tenant::wait(bool closing) {
  closing_ = closing;
  drain_expected_ns_ = node_.clock.now_ns() + limiter::remaining_ns(backlog(), node_.clock.now_ns());
  waiting_ = true;
  node_.ring(this);
}

inline void Tenant::pump() {
  if (!running_ || frozen_ || waiting_ || launching_ || syncing_) return;
  if (load_.burst > 0 && unlaunched_ == 0) return;
  if (told_.mode == limiter::Mode::kParked) {
    wait(false);
    look_again();
    return;
  }
  if (told_.mode == limiter::Mode::kTurn) {
    const limiter::GateView view = {shm::kTurn, 0, told_.deadline_ns, node_.settings.run_ahead_ns};
    const limiter::Admission admission =
        limiter::admit(view, backlog(), next_.estimate_ns, false, node_.clock.now_ns());
    if (admission == limiter::Admission::kClosing) wait(true);
    if (admission != limiter::Admission::kAdmit) {
      look_again();
      return;
    }
  } else if (outstanding_.size() >= 64) {
    return;
  }
  launching_ = true;
  node_.clock.at(node_.clock.now_ns() + node_.settings.launch_ns, [this] { launch(); });
}

// A launch that is held back is let in if what is under way does not move (rules R2 and R3).
inline void Tenant::look_again() {
  if (outstanding_.empty()) return;
  const uint64_t patience = told_.mode == limiter::Mode::kParked ? limiter::kParkedPatience : 1;
  const uint64_t at_ns = readmission_.next_ns(backlog(), patience);
  if (look_again_ns_ != kNever && look_again_ns_ <= at_ns) return;
  look_again_ns_ = at_ns;
  node_.clock.at(at_ns, [this, at_ns] {
    if (look_again_ns_ != at_ns) return;
    look_again_ns_ = kNever;
    if (!running_ || frozen_ || launching_ || syncing_ || outstanding_.empty()) return;
    if (told_.mode == limiter::Mode::kOpen || (load_.burst > 0 && unlaunched_ == 0)) return;
    const uint64_t now_patience = told_.mode == limiter::Mode::kParked ? limiter::kParkedPatience : 1;
    if (readmission_.take(backlog(), now_patience, node_.clock.now_ns())) launch();
    look_again();
  });
}

inline void Tenant::launch() {
  launching_ = false;
  if (frozen_) return;
  if (outstanding_.empty()) active_since_ns_ = progress_ns_ = node_.clock.now_ns();
  if (load_.burst > 0) unlaunched_--;
  next_.measured = next_.measured || outstanding_.empty();
  if (next_.measured && estimates_ != nullptr) estimates_->sampling(1);
  outstanding_.push_back(next_);
  outstanding_ns_ += next_.estimate_ns;
  launches_++;
  syncing_ = load_.synchronous;
  const uint64_t kernel_ns = next_kernel_ns_;
  prepare();
  for (size_t i = 0; i < gpus_.size(); i++) gpus_[i]->launch(contexts_[i], kernel_ns);
  pump();
}

inline void Tenant::on_done(uint64_t begun_ns) {
  const Kernel kernel = outstanding_.front();
  outstanding_.pop_front();
  outstanding_ns_ -= kernel.estimate_ns;
  if (frozen_) return;
  // As events tell: from the end of the kernel before it, with what other contexts ran meanwhile.
  const uint64_t now_ns = node_.clock.now_ns();
  const uint64_t occupied_ns = now_ns - std::max(last_end_ns_, begun_ns);
  occupied_ns_ += occupied_ns;
  if (kernel.measured && estimates_ != nullptr) {
    if (told_.mode == limiter::Mode::kTurn && told_.others_run) {
      estimates_->sample_beside_others(1, occupied_ns);
    } else {
      estimates_->sample(1, occupied_ns);
    }
  }
  last_end_ns_ = progress_ns_ = now_ns;
  if (load_.burst > 0 && unlaunched_ == 0 && outstanding_.empty()) {
    latencies_ns_.push_back(now_ns - requested_ns_);
    requested_ns_ = kNever;
  }
  if (syncing_) {
    node_.clock.at(node_.clock.now_ns() + load_.gap_ns, [this] {
      syncing_ = false;
      pump();
    });
  }
  if (outstanding_.empty()) {
    drained_ns_ = node_.clock.now_ns();
    active_ns_ += drained_ns_ - active_since_ns_;
    if (told_.others_wait || waiting_) node_.ring(this);
  }
  pump();
}

}  // namespace model
