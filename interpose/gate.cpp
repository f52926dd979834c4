// SPDX-License-Identifier: Apache-2.0
#include "interpose/gate.h"

#include <new>

#include "interpose/outstanding.h"
#include "interpose/syscalls.h"
#include "interpose/watcher.h"
#include "limiter/pace.h"

namespace gate {

using hook::real;
namespace fn = hook::fn;

constinit std::atomic<uint64_t> unattached_word{shm::kGateShut};
constinit std::atomic<uint64_t> word_distance{0};
constinit thread_local uint64_t noted[4] = {};

namespace {

constinit std::atomic<uint64_t> open_word{shm::kGateOpen};
constinit SliceGate gates[hook::kMaxSlices] = {};
constinit std::atomic<int> gate_count;

// A waiting launch looks again, and rings again, this often: a lost wake-up costs no more.
constexpr uint64_t kLookAgainNs = 50'000'000;
// A broker that has granted nothing for so long and whose heart has not beaten for so long is taken for dead.
constexpr uint64_t kNoGrantNs = 250'000'000;
constexpr uint64_t kNoHeartbeatNs = 500'000'000;
// Work that may be under way while pacing: estimates may be wrong.
constexpr uint64_t kPacedRunAheadNs = 10'000'000;
// In a turn until further notice launches do not wait, and so do not ring; work that begins is told of so
// often at most. The broker goes on looking by itself while two slices work.
constexpr uint64_t kTellWorkNs = 20'000'000;
constexpr uint64_t kContextClosingNs = 1'000'000'000;
constexpr uint64_t kPinnedNapNs = 50'000;

void lead_word_to(const std::atomic<uint64_t>& word) {
  word_distance.store(reinterpret_cast<uint64_t>(&word) - reinterpret_cast<uint64_t>(&unattached_word),
                      std::memory_order_release);
}

void note(uint64_t word, const StreamName& name) {
  uint64_t sought = word ^ name.bits();
  for (uint64_t& entry : noted) {
    if (entry == sought) return;
  }
  noted[3] = noted[2];
  noted[2] = noted[1];
  noted[1] = noted[0];
  noted[0] = sought;
}

// The gate of the GPU that is current, or nullptr: in no slice.
SliceGate* gate_of_current_context() {
  const hook::SliceGpu gpu = hook::gpu_of_current_context();
  if (!gpu) return nullptr;
  return &gates[gpu.slice - hook::session().slices];
}

// Finds the context's gate and entry, which is made if need be. Without an entry, for which there may be no
// room, the launch still waits its turn; only what it takes is not known. A context that is in no slice gets
// none: its end would not be told.
void enter_context(Launch& launch, CUcontext handle) {
  {
    Books books;
    if (Context* known = find_context(books, handle)) {
      launch.context = known;
      launch.gate = known->gate;
      return;
    }
  }
  CUcontext current = nullptr;
  real<fn::cuCtxGetCurrent>(&current);
  bool pushed = current != handle;
  if (pushed && real<fn::cuCtxPushCurrent_v2>(handle) != CUDA_SUCCESS) return;
  launch.gate = gate_of_current_context();
  if (pushed) real<fn::cuCtxPopCurrent_v2>(&current);
  if (launch.gate == nullptr) return;
  Books books;
  launch.context = add_context(books, handle, *launch.gate);
}

// Default streams: which one that is depends on the context, or even the thread.
bool is_shared_handle(CUstream stream) {
  return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

// The context that a launch is in, and with it its gate. false: none, so there is nothing to wait for.
bool locate(Launch& launch) {
  CUstream stream = launch.name.plain();
  bool shared_handle = is_shared_handle(stream);
  if (!shared_handle) {
    Books books;
    if (Stream* known = find_stream(books, stream, nullptr)) {
      launch.context = known->context;
      launch.gate = known->context->gate;
      return true;
    }
  }
  CUcontext handle = nullptr;
  if (shared_handle || real<fn::cuStreamGetCtx>(stream, &handle) != CUDA_SUCCESS) {
    if (real<fn::cuCtxGetCurrent>(&handle) != CUDA_SUCCESS) return false;
  }
  if (handle == nullptr) return false;
  enter_context(launch, handle);
  return launch.gate != nullptr;
}

Stream* stream_of(const Books& books, const Launch& launch) {
  CUstream handle = launch.name.plain();
  if (handle == CU_STREAM_PER_THREAD || launch.context == nullptr) return nullptr;
  return add_stream(books, handle, *launch.context);
}

void ensure_watcher(SliceGate& gate) {
  using Watcher = SliceGate::Watcher;
  Watcher seen = gate.watcher.load(std::memory_order_relaxed);
  if (seen != Watcher::kNone) [[likely]]
    return;
  if (!gate.watcher.compare_exchange_strong(seen, Watcher::kRunning, std::memory_order_acq_rel)) return;
  if (!start_watcher(gate)) gate.watcher.store(Watcher::kFailed, std::memory_order_relaxed);
}

// `turn` before `deadline_ns`, which the broker writes in the other order: an old deadline is never taken for
// the new turn's.
limiter::GateView view_of(const shm::Gate& line) {
  limiter::GateView view;
  view.mode = line.mode.load(std::memory_order_acquire);
  view.turn = line.turn.load(std::memory_order_acquire);
  view.deadline_ns = line.deadline_ns.load(std::memory_order_acquire);
  view.run_ahead_ns = line.run_ahead_ns.load(std::memory_order_acquire);
  return view;
}

bool is_closed(const SliceGate& gate, const limiter::GateView& view) {
  return gate.closed && gate.closed_turn == view.turn;
}

using Estimate = limiter::KernelEstimates::Estimate;

// Puts a launch that was admitted in the books. true: ring.
bool begin(const Books& books, Launch& launch, Stream* stream, const Estimate& estimate,
           const limiter::GateView& view, uint64_t now_ns) {
  SliceGate& gate = *launch.gate;
  launch.estimate_ns = estimate.ns;
  launch.stream = stream;
  launch.entered = true;
  bool tell = gate.backlog.kernels == 0 && view.deadline_ns == shm::kNoDeadline &&
              now_ns - gate.told_ns > kTellWorkNs;
  if (tell) gate.told_ns = now_ns;
  begin_launch(books, launch, estimate.wants_sample, view, now_ns);
  return tell;
}

// What most launches in a turn need, with one hold of the lock: the stream is known, nothing else is to be
// done first, and the launch need not wait. false: nothing was done.
bool begin_at_once(Launch& launch, const Estimate& estimate) {
  CUstream handle = launch.name.plain();
  if (is_shared_handle(handle) || may_be_capturing()) return false;
  SliceGate* gate;
  bool tell;
  {
    Books books;
    Stream* stream = find_stream(books, handle, nullptr);
    if (stream == nullptr) return false;
    gate = stream->context->gate;
    if (gate->dirty) return false;
    if (gate->watcher.load(std::memory_order_relaxed) != SliceGate::Watcher::kRunning) return false;
    if (gate->line().gate.load(std::memory_order_acquire) & shm::kGateOpen) return false;
    const limiter::GateView view = view_of(gate->line());
    uint64_t now_ns = hook::now_ns();
    if (limiter::admit(view, gate->backlog, estimate.ns, is_closed(*gate, view), now_ns) !=
        limiter::Admission::kAdmit)
      return false;
    launch.gate = gate;
    launch.context = stream->context;
    tell = begin(books, launch, stream, estimate, view, now_ns);
  }
  if (tell) ring(*gate);
  return true;
}

// One launch that waits at the gate.
class Waiting {
 public:
  Waiting(Launch& launch, const Estimate& estimate)
      : launch_(launch), gate_(*launch.gate), estimate_(estimate) {}
  ~Waiting() {
    if (counted_) gate_.work().waiting.fetch_sub(1, std::memory_order_release);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Until the launch is in the books and may go to the driver.
  void wait() {
    while (!try_begin()) sleep();
  }

 private:
  bool try_begin();
  void sleep();
  limiter::Admission decide(const Books&, const limiter::GateView& view, uint64_t now_ns);
  bool broker_is_silent(uint64_t now_ns);
  bool pace_allows(uint64_t now_ns);

  Launch& launch_;
  SliceGate& gate_;
  const Estimate estimate_;
  bool counted_ = false;         // in Work.waiting
  uint32_t grant_ = 0;           // as read before the decision
  uint64_t grant_since_ns_ = 0;  // since when it is that, as far as this launch saw
  bool paced_ = false;
  uint64_t paced_start_ns_ = 0;

  // What to sleep on after a decision against the launch.
  limiter::Admission held_by_ = limiter::Admission::kAdmit;
  uint32_t ends_ = 0;
  uint64_t looked_ns_ = 0;  // when it decided
  uint64_t look_again_ns_ = 0;
  bool ring_ = false;
};

bool Waiting::broker_is_silent(uint64_t now_ns) {
  uint64_t beat_ns = gate_.limits->heartbeat.beat_ns.load(std::memory_order_acquire);
  if (now_ns < beat_ns || now_ns - beat_ns < kNoHeartbeatNs) return false;
  if (gate_.silent && gate_.silent_grant == grant_) return true;
  if (now_ns - grant_since_ns_ < kNoGrantNs) return false;
  gate_.silent = true;
  gate_.silent_grant = grant_;
  return true;
}

// Books the launch's time in the slice's bucket, once, and says whether that has come.
bool Waiting::pace_allows(uint64_t now_ns) {
  if (!paced_) {
    paced_ = true;
    uint32_t percent = gate_.limits->share.compute_percent.load(std::memory_order_relaxed);
    paced_start_ns_ = limiter::pace(gate_.state->pace.next_ns, estimate_.ns, percent, now_ns);
  }
  look_again_ns_ = paced_start_ns_;
  return now_ns >= paced_start_ns_;
}

limiter::Admission Waiting::decide(const Books&, const limiter::GateView& view, uint64_t now_ns) {
  using limiter::Admission;
  const limiter::Backlog& backlog = gate_.backlog;
  Admission admission = limiter::admit(view, backlog, estimate_.ns, is_closed(gate_, view), now_ns);
  if (admission == Admission::kAdmit) return admission;

  bool out_of_turn = admission == Admission::kClosing || admission == Admission::kPark;
  if (out_of_turn && view.mode != shm::kBlocked && broker_is_silent(now_ns)) {
    if (!pace_allows(now_ns)) return Admission::kPark;
    const limiter::GateView paced = {shm::kTurn, view.turn, shm::kNoDeadline, kPacedRunAheadNs};
    admission = limiter::admit(paced, backlog, estimate_.ns, false, now_ns);
    if (admission == Admission::kAdmit) {
      gate_.state->counters[shm::kPacedLaunches].fetch_add(1, std::memory_order_relaxed);
      return admission;
    }
  }
  if (view.mode == shm::kBlocked) return admission;
  // A process whose own work is done may be what another one of the slice waits for.
  const limiter::Backlog stuck = admission == Admission::kRunAheadFull ? backlog : slice_backlog(gate_);
  if (stuck.kernels > 0) {
    uint64_t patience = admission == Admission::kPark ? limiter::kParkedPatience : 1;
    if (gate_.readmission.take(stuck, patience, now_ns)) {
      gate_.state->counters[shm::kReadmittedLaunches].fetch_add(1, std::memory_order_relaxed);
      return Admission::kAdmit;
    }
    look_again_ns_ = gate_.readmission.next_ns(stuck, patience);
  }
  if (admission == Admission::kRunAheadFull && view.deadline_ns < look_again_ns_)
    look_again_ns_ = view.deadline_ns;
  return admission;
}

bool Waiting::try_begin() {
  // `grant` first: what changes after this wakes a sleeper that saw it.
  uint32_t grant = gate_.line().grant.load(std::memory_order_acquire);
  const limiter::GateView view = view_of(gate_.line());

  bool wake = false, tell = false;
  {
    Books books;
    uint64_t now_ns = hook::now_ns();
    if (grant_since_ns_ == 0 || grant != grant_) grant_since_ns_ = now_ns;
    grant_ = grant;
    looked_ns_ = now_ns;
    look_again_ns_ = now_ns + kLookAgainNs;
    if (gate_.dirty) {
      adopt_dirty_streams(books, gate_, now_ns);
      wake = call_watcher(books, gate_);
    }
    held_by_ = decide(books, view, now_ns);
    if (held_by_ == limiter::Admission::kAdmit) {
      if (launch_.context != nullptr &&
          gate_.watcher.load(std::memory_order_relaxed) == SliceGate::Watcher::kRunning) {
        tell = begin(books, launch_, stream_of(books, launch_), estimate_, view, now_ns);
      }
    } else if (held_by_ == limiter::Admission::kRunAheadFull) {
      ends_ = gate_.ends.load(std::memory_order_relaxed);
      ++gate_.end_waiters;
    } else if (held_by_ == limiter::Admission::kClosing && !is_closed(gate_, view)) {
      gate_.closed = true;
      gate_.closed_turn = view.turn;
      shm::Work& work = gate_.work();
      work.drain_expected_ns.store(now_ns + limiter::remaining_ns(gate_.backlog, now_ns),
                                   std::memory_order_relaxed);
      work.closing_turn.store(view.turn, std::memory_order_release);
      ring_ = true;
    }
  }
  if (wake) wake_watcher(gate_);
  if (tell) ring(gate_);
  return held_by_ == limiter::Admission::kAdmit;
}

void Waiting::sleep() {
  if (held_by_ != limiter::Admission::kRunAheadFull && !counted_) {
    counted_ = true;
    if (gate_.work().waiting.fetch_add(1, std::memory_order_acq_rel) == 0) ring_ = true;
  }
  if (ring_) ring(gate_);
  ring_ = false;

  uint64_t now_ns = hook::now_ns();
  uint64_t nap_ns = look_again_ns_ > now_ns ? look_again_ns_ - now_ns : 0;
  if (nap_ns > kLookAgainNs) nap_ns = kLookAgainNs;
  if (held_by_ == limiter::Admission::kRunAheadFull) {
    hook::futex_wait(&gate_.ends, ends_, nap_ns, false);
    Books books;
    --gate_.end_waiters;
  } else {
    hook::futex_wait(&gate_.line().grant, grant_, nap_ns, true);
    ring_ = looked_ns_ + kLookAgainNs <= hook::now_ns() &&
            gate_.line().grant.load(std::memory_order_relaxed) == grant_;
  }
}

// In the child of a fork the books may be locked for ever by a thread that is not there; membership()
// notices.
bool has_gates() { return hook::membership() == hook::Membership::kAttached; }

// Launches that the gate lets through in the open: remembered per stream, for the day that it shuts.
void remember_open(Launch& launch) {
  Books books;
  if (Stream* stream = stream_of(books, launch); stream != nullptr) {
    stream->dirty = true;
    launch.gate->dirty = true;
  }
}

void pass_open(Launch& launch, uint64_t word) {
  remember_open(launch);
  if (gate_count.load(std::memory_order_relaxed) == 1) note(word, launch.name);
}

// Call before the stream is closed. Our own thread uses it no longer than kContextClosingNs from now.
void close_stream(const StreamName& name, bool ends) {
  uint64_t deadline_ns = hook::now_ns() + kContextClosingNs;
  for (;;) {
    PinnedStream pinned;
    {
      Books books;
      Stream* entry = find_stream(books, name.plain(), nullptr);
      if (entry == nullptr || entry->context->closing) return;
      bool settled = entry->begun == entry->covered && !entry->pinned;
      if (settled || hook::now_ns() > deadline_ns) {
        close_stream(books, *entry, ends);
        return;
      }
      if (!entry->pinned) pinned = pin(books, *entry);
    }
    if (pinned.stream != nullptr) {
      ++inside;
      cover_pinned(*pinned.stream->context->gate, pinned);
      --inside;
    } else {
      hook::sleep_ns(kPinnedNapNs);
    }
  }
}

}  // namespace

// --- For the session.

void attach(hook::Membership membership) {
  if (membership == hook::Membership::kTransparent) lead_word_to(open_word);
  if (membership != hook::Membership::kAttached) return;
  const hook::Session& session = hook::session();
  for (int i = 0; i < session.slice_count; ++i) {
    SliceGate& gate = gates[i];
    gate.limits = session.slices[i].limits;
    gate.state = session.slices[i].state;
    gate.slot = session.slices[i].slot.slot;
  }
  gate_count.store(session.slice_count, std::memory_order_relaxed);
  if (session.slice_count == 1) lead_word_to(gates[0].line().gate);
}

void forked_child() {
  lead_word_to(unattached_word);
  for (uint64_t& entry : noted) entry = 0;
  inside = 0;
  forget_everything();
  int count = gate_count.exchange(0, std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) {
    gates[i].~SliceGate();
    new (&gates[i]) SliceGate();
  }
}

// --- For the hooks of contexts and streams.

void contexts_changed(const hook::AttachedSlice& slice, int delta) {
  SliceGate& gate = gates[&slice - hook::session().slices];
  gate.work().contexts.fetch_add(static_cast<uint32_t>(delta), std::memory_order_acq_rel);
  ring(gate);
}

void context_closing(CUcontext handle) {
  if (!has_gates()) return;
  SliceGate* gate = nullptr;
  bool tell = false;
  {
    Books books;
    Context* context = find_context(books, handle);
    if (context == nullptr) return;
    gate = context->gate;
    drop_context(books, *context);
    if (call_watcher(books, *gate)) wake_watcher(*gate);
  }
  uint64_t deadline_ns = hook::now_ns() + kContextClosingNs;
  while (context_in_use(handle) && hook::now_ns() < deadline_ns) hook::sleep_ns(kPinnedNapNs);
  {
    Books books;
    tell = settle(books, *gate, hook::now_ns());
  }
  if (tell) ring(*gate);
}

void stream_closing(CUstream stream, bool per_thread_form) {
  if (has_gates()) close_stream({stream, per_thread_form}, false);
}

void stream_ending(CUstream stream) {
  if (has_gates()) close_stream({stream, false}, true);
}

// A thread that noted the handle launches there without telling: the stream counts as launched on already.
void stream_began(CUstream stream, bool per_thread_form) {
  if (!has_gates() || !may_be_noted(stream)) return;
  Launch launch = {.name = {stream, per_thread_form}, .key = 0};
  if (!locate(launch)) return;
  if (launch.gate->line().gate.load(std::memory_order_acquire) & shm::kGateOpen) remember_open(launch);
}

// --- For the hooks of what is launched.

void graph_ending(CUgraphExec graph) {
  if (has_gates()) estimates.forget(limiter::launch_key(reinterpret_cast<uint64_t>(graph)));
}

void functions_ended() {
  if (has_gates()) estimates.doubt_all();
}

// --- For the hooks of launches.

void enter(Launch& launch) {
  if (inside > 0) return;
  switch (hook::membership()) {
    case hook::Membership::kAttached:
      break;
    case hook::Membership::kTransparent:
      if (hook::open_driver()) note(shm::kGateOpen, launch.name);
      return;
    default:
      return;  // closed: there was no cuInit, so the driver has its own answer
  }
  if (!hook::open_driver()) return;
  const Estimate estimate = estimates.expect(launch.key);
  if (!begin_at_once(launch, estimate)) {
    if (!locate(launch)) return;
    uint64_t word = launch.gate->line().gate.load(std::memory_order_acquire);
    if (word & shm::kGateOpen) return pass_open(launch, word);
    if (is_capturing(launch.name)) return;
    ensure_watcher(*launch.gate);
    Waiting(launch, estimate).wait();
    if (!launch.entered) return;
  }

  ++inside;
  if (launch.measured) {
    RelaxedCapture relaxed;
    launch.begin = take_event(*launch.context);
    if (!record(*launch.context, launch.name.plain(), launch.begin)) launch.measured = false;
  }
}

CUresult leave(Launch& launch, CUresult result) {
  if (!launch.entered) return result;
  SliceGate& gate = *launch.gate;
  Context& context = *launch.context;
  Stream* stream = launch.stream;
  bool wake = false, tell = false;
  if (result != CUDA_SUCCESS) {
    Books books;
    cancel_launch(books, launch);
    give_event(books, context, launch.begin);
    tell = settle(books, gate, hook::now_ns());
  } else {
    uint32_t returned = 0;
    if (stream != nullptr) returned = stream->returned.fetch_add(1, std::memory_order_acq_rel) + 1;
    if (launch.wants_end) {
      CUevent end;
      bool recorded;
      {
        RelaxedCapture relaxed;
        end = take_event(context);
        recorded = record(context, launch.name.plain(), end);
      }
      Books books;
      if (recorded && !context.closing) {
        bool alone = launch.measured && (stream == nullptr || stream->begun == launch.begun);
        add_batch(books, gate, stream, returned,
                  {.context = &context,
                   .begin = launch.begin,
                   .end = end,
                   .key = alone ? launch.key : 0,
                   .estimate_ns = launch.estimate_ns,
                   .kernels = 1,
                   .first = launch.first && launch.measured});
        wake = call_watcher(books, gate);
      } else {
        give_event(books, context, launch.begin);
        give_event(books, context, end);
        give_up(books, gate, stream, returned, launch.estimate_ns);
        tell = settle(books, gate, hook::now_ns());
      }
    }
  }
  if (wake) wake_watcher(gate);
  if (tell) ring(gate);
  --inside;
  return result;
}

}  // namespace gate
