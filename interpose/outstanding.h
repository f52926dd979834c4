// SPDX-License-Identifier: Apache-2.0
//
// The books of a process: what it has launched and does not yet know to be finished.
//
// Per stream, launches are counted until an event covers them; the launches that an event covers are a batch,
// which ends when the event does. One launch in many gets an event, and the time between the one before it
// and the one after it is its duration. The watcher ends the batches.
//
// No event is ever recorded in the legacy stream, where it would be a barrier for other streams: a blocking
// stream of our own (`probe`) waits for the legacy stream's work, so its events end no sooner. A thread's
// default stream can be named by that thread only, so each launch there is covered at once.
//
// Everything is under books_lock unless said otherwise: what takes a `const Books&` needs it held, what does
// not must not have it. It is never held across a driver call; what the driver is asked about meanwhile is
// pinned.
#pragma once

#include <cstdint>

#include "interpose/futex_lock.h"
#include "interpose/gate.h"
#include "limiter/admission.h"
#include "limiter/kernel_estimates.h"

namespace gate {

constexpr uint32_t kMaxContexts = 64;
constexpr uint32_t kMaxStreams = 512;
constexpr uint32_t kMaxBatches = 512;
constexpr uint32_t kMaxSpareEvents = 2 * kMaxBatches;

// An event covers a stream's launches at the latest after so many, or so much estimated work.
constexpr uint32_t kBatchLaunches = 64;
constexpr uint64_t kBatchNs = 1'000'000;

struct Context {
  CUcontext handle;  // nullptr: free entry
  SliceGate* gate;   // of the slice that has its GPU
  CUstream probe;
  CUevent last_end;  // occupied_ns is accounted for up to here; the watcher's own
  uint32_t pins;     // uses without the lock, by the watcher or a hook of streams
  bool closing;      // neither its handle nor its events may be used any more
  uint32_t spare_count;
  CUevent spares[kMaxSpareEvents];
};

struct Stream {
  CUstream handle;  // nullptr: free entry
  Context* context;
  uint32_t begun;    // launches that began
  uint32_t covered;  // of those begun, how many are in batches or given up
  std::atomic<uint32_t>
      returned;           // of those begun, how many the driver has returned from; not under the lock
  uint64_t uncovered_ns;  // estimate of those begun and not covered
  bool pinned;            // an event is being recorded in it
  bool dirty;             // was launched on while the gate was open, and may be noted by threads

  bool all_returned() const { return returned.load(std::memory_order_acquire) == begun; }
  bool unused() const { return begun == covered && all_returned() && !pinned && !dirty; }
};

struct Batch {
  Context* context = nullptr;  // nullptr: it is gone, and the events with it
  CUevent begin = nullptr;     // before its last launch; nullptr: not recorded
  CUevent end = nullptr;
  uint64_t key = 0;  // of the launch between begin and end; 0: not that one alone
  uint64_t estimate_ns = 0;
  uint32_t kernels = 0;
  bool first = false;  // nothing was under way before `begin`
  bool late = false;   // `end` was recorded by the watcher, perhaps long after the work was done
};

// A slice's gate, and the work that this process has under way behind it.
struct SliceGate {
  const shm::Limits* limits;
  shm::State* state;
  uint32_t slot;

  limiter::Backlog backlog;
  limiter::Readmission readmission;
  Batch batches[kMaxBatches];  // a ring, in the order recorded
  uint32_t first_batch, batch_count;
  bool outstanding;  // as told in Work
  bool dirty;        // some stream is
  bool closed;       // told: no more launches in closed_turn
  uint32_t closed_turn;
  uint64_t told_ns;  // when the broker was last told of work that nobody had waited with
  bool silent;       // no broker answered while `grant` was silent_grant
  uint32_t silent_grant;

  enum class Watcher : uint8_t { kNone, kRunning, kFailed };
  std::atomic<Watcher> watcher;  // not under the lock
  bool watcher_sleeps;
  uint32_t end_waiters;           // launches that wait for `ends`
  std::atomic<uint32_t> ends;     // futex: ends of batches so far
  std::atomic<uint32_t> errands;  // futex: times that the watcher was called

  shm::Work& work() const { return state->work[slot]; }
  const shm::Gate& line() const { return limits->gate; }
};

extern constinit FutexLock books_lock;
class Books : public Locked {
 public:
  Books() : Locked(books_lock) {}
};

extern limiter::KernelEstimates estimates;  // not under the lock

// In the child of a fork: nothing is under way, no context exists, nobody holds the lock.
void forget_everything();

// > 0 while this thread is in a launch, or in a driver call of ours: a launch hook that the driver comes back
// through lets it pass.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local uint32_t inside;

// Driver calls that are no part of a capture must not break it, nor the capture them.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  bool exchanged_;
  CUstreamCaptureMode mode_;
};

// --- Contexts and streams.

Context* find_context(const Books&, CUcontext handle);
// nullptr: no room. Finds it if it is there already.
Context* add_context(const Books&, CUcontext handle, SliceGate& gate);
void unpin(const Books&, Context& context);
// A thread of ours is still in the context that is closing.
bool context_in_use(CUcontext handle);

// A stream by its plain handle; a legacy stream is another one in each context.
Stream* find_stream(const Books&, CUstream handle, const Context* context);
// nullptr: no room in its neighbourhood. Finds it if it is there already.
Stream* add_stream(const Books&, CUstream handle, Context& context);
// No thread of ours will use the stream before it is launched on again; if it `ends`, its handle means
// another one from now on. What is not covered counts as done.
void close_stream(const Books&, Stream& stream, bool ends);
// Whether some thread may have noted the handle before the stream was closed. Now and then true without that.
bool may_be_noted(CUstream handle);
// A stream with launches that need an event, all returned from; it and its context stay pinned until
// cover_pinned().
struct PinnedStream {
  Stream* stream = nullptr;
  CUstream handle = nullptr;  // as it was: the entry loses its own when the context closes
  uint32_t up_to = 0;
};
PinnedStream pin_uncovered(const Books&, const SliceGate& gate);  // any of the gate's; none: nullptr
PinnedStream pin(const Books&, Stream& stream);
// Records the event, in a batch. The context need not be current.
void cover_pinned(SliceGate& gate, const PinnedStream& pinned);
// Every stream that is dirty counts as one launch from now on.
void adopt_dirty_streams(const Books&, SliceGate& gate, uint64_t now_ns);

// --- Launches and batches.

// Enters launch.{gate, context, stream, estimate_ns} and decides which events the launch gets.
void begin_launch(const Books&, Launch& launch, bool wants_sample, const limiter::GateView& view,
                  uint64_t now_ns);
// Takes out one that the driver refused.
void cancel_launch(const Books&, Launch& launch);
// Makes a batch of what `end` covers: launches of `stream` up to number `up_to`, or if nullptr one alone, for
// which batch.estimate_ns is set. Without room for it, the newest batch takes it in.
void add_batch(const Books&, SliceGate& gate, Stream* stream, uint32_t up_to, Batch batch);
// What add_batch() would have taken in counts as done: there is no event for it.
void give_up(const Books&, SliceGate& gate, Stream* stream, uint32_t up_to, uint64_t estimate_ns);
// Takes the oldest batch off.
void end_batch(const Books&, SliceGate& gate, uint64_t now_ns);
// The context's batches and launches count as done, its entry is free as soon as nobody uses it.
void drop_context(const Books&, Context& context);

// If nothing is under way any more, says so in Work. true: the broker wants to know.
bool settle(const Books&, SliceGate& gate, uint64_t now_ns);
// What the processes of the slice have under way: at least one kernel in each that has any, the longest
// oldest part, and when an end was last seen anywhere: while one runs, the driver may let the others wait.
limiter::Backlog slice_backlog(const SliceGate& gate);
void ring(SliceGate& gate);
// true: the watcher sleeps, and is to be woken with wake_watcher() without the lock.
bool call_watcher(const Books&, SliceGate& gate);
void wake_watcher(SliceGate& gate);

// --- Events. The context is in use by this thread, or pinned.

// From the spares, or new; nullptr: the driver gives none.
CUevent take_event(Context& context);
void give_event(const Books&, Context& context, CUevent event);  // `event` may be nullptr
// Records in the stream, or for the legacy stream in the probe.
bool record(Context& context, CUstream stream, CUevent event);

}  // namespace gate
