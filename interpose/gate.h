// SPDX-License-Identifier: Apache-2.0
//
// The gate that every launch passes: open, it costs a load and a compare; shut, a launch waits for its
// slice's turn.
//
// The gate of a slice is a word in its `limits` (shm/layout.h). The process finds it through word_distance,
// which leads to a word of its own until the session has decided: shut, so that the first launch attaches;
// then, where there is no slice, one that is open for ever. While a gate is open each thread notes the
// streams that it launched on, and a noted stream costs nothing more until the word changes. Everything else
// takes the slow path: enter(), the driver's function, leave(). A process in several slices has no single
// word: all its launches take the slow path, which finds the gate by the stream's context.
//
// Nothing is held across a call into the driver, and every wait ends by itself (limiter/admission.h,
// limiter/pace.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/driver.h"
#include "interpose/session.h"

namespace gate {

// --- For the session.

// The session has decided, and is complete where it says kAttached. No launch has passed a slice's gate yet.
// Starts no thread.
void attach(hook::Membership membership);
// In the child of a fork, from its only thread: forgets the parent's work and gates.
void forked_child();

// --- For the hooks of contexts.

// `delta` contexts of this process came to, or went from, the slice's GPUs.
void contexts_changed(const hook::AttachedSlice& slice, int delta);
// Call before a context may go away: waits (at most 1 s) until our own thread is out of it, and counts its
// work as done. Nothing is lost if it stays.
void context_closing(CUcontext context);

// --- For the hooks of streams.

// In the hooks below a handle means what it names now. The driver gives handles out again, so that whatever
// goes away leaves the books before the driver's call.

// Call before a stream begins to be captured: what was launched on it gets its event now, and our own thread
// will not touch it any more until it is launched on again.
void stream_closing(CUstream stream, bool per_thread_form);
// The same, before a stream goes away.
void stream_ending(CUstream stream);
// A stream was made, or is captured no more. Threads may have noted its handle for what it named before.
void stream_began(CUstream stream, bool per_thread_form);

// --- For the hooks of what is launched.

// An instantiated graph goes away: what it took says nothing about the next one with its handle.
void graph_ending(CUgraphExec graph);
// Functions go away, who knows which: what any of them takes is measured anew at its next launch.
void functions_ended();

// --- For the hooks of launches.

// A stream as a launch names it. In the per-thread form of a function, 0 is the thread's own default stream;
// that form is told apart by a bit that no handle has.
struct StreamName {
  CUstream stream;
  bool per_thread_form;

  static constexpr uint64_t kPerThreadForm = uint64_t{1} << 61;
  uint64_t bits() const {
    return reinterpret_cast<uint64_t>(stream) ^ (per_thread_form ? kPerThreadForm : 0);
  }
  // The handle that means the same in the plain form.
  CUstream plain() const {
    if (stream != nullptr) return stream;
    return per_thread_form ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  }
};

// Only while some stream may be capturing are streams asked whether they are.
void capture_began();
void capture_ended();
bool may_be_capturing();
// Being captured, or the driver would not say: a launch there is no work, or an error.
bool is_capturing(const StreamName& name);

struct SliceGate;
struct Context;
struct Stream;

// A launch from enter() to leave().
struct Launch {
  StreamName name;
  uint64_t key;  // limiter::launch_key: what its duration is estimated by

  bool entered = false;       // leave() has something to do
  SliceGate* gate = nullptr;  // the books that it is in; nullptr: it passed without
  Context* context = nullptr;
  Stream* stream = nullptr;  // nullptr: a stream without an entry, which gets an event after each launch
  uint64_t estimate_ns = 0;
  CUevent begin = nullptr;
  bool wants_end = false;
  bool measured = false;  // begin and end enclose this launch alone
  bool first = false;     // nothing was under way before it
  uint32_t begun = 0;     // of `stream`, when it began
};

// Waits until the launch may go to the driver. May be called where there is no driver or session yet.
void enter(Launch& launch);
// After the driver's function; returns `result`.
CUresult leave(Launch& launch, CUresult result);

// By these names in launch_on_stack.S too.
[[gnu::visibility("hidden")]] extern constinit std::atomic<uint64_t> unattached_word asm(
    "cuslice_gate_unattached_word");
[[gnu::visibility("hidden")]] extern constinit std::atomic<uint64_t> word_distance  // from unattached_word
    asm("cuslice_gate_word_distance");
[[gnu::visibility("hidden"),
  gnu::tls_model("initial-exec")]] extern constinit thread_local uint64_t noted[4] asm("cuslice_gate_noted");

inline uint64_t word() {
  uint64_t address =
      reinterpret_cast<uint64_t>(&unattached_word) + word_distance.load(std::memory_order_relaxed);
  return reinterpret_cast<const std::atomic<uint64_t>*>(address)->load(std::memory_order_relaxed);
}

// Budget: 12 instructions for a whole launch hook when the first comparison hits
// (tests/gate/fast_path_test.py). True only after the driver was opened: its slots need no check then.
[[gnu::always_inline]] inline bool passes(const StreamName& name) {
  uint64_t sought = word() ^ name.bits();
  return sought == noted[0] || sought == noted[1] || sought == noted[2] || sought == noted[3];
}

}  // namespace gate
