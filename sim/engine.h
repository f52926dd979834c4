// SPDX-License-Identifier: Apache-2.0
//
// How one simulated device passes its time: a discrete-event simulation of channels, contexts, SMs and a copy
// engine.
//
//  * A channel's items run one after another; the first that is not completed is its head.
//  * A head starts when what it comes `after` is completed. Markers are then completed at once. Copies queue
//  for the
//    device's copy engine, which serves them in order, whatever context has the SMs.
//  * Kernels run only while their context has the SMs. Contexts take turns of `time_slice_ns`, round robin; a
//  change
//    of context costs `context_switch_ns` in which nothing runs. A context with nothing to run gives way at
//    once; one that is alone keeps the SMs and never switches. At the end of a turn kernels stop and go on in
//    the next.
//  * Within its turn, a context's heads start in the order of their submission as long as their SMs fit.
//
// The engine is a pure function of its state and the times passed to it: it has no clock, lock or system
// call. Whoever calls holds the device's lock, has brought the device to the present by advance(), and calls
// commit() when done. After a holder died, recover() makes the state whole. Times of completion are exact
// whoever looks when.
#pragma once

#include "sim/journal.h"
#include "sim/layout.h"

namespace sim {

class Engine {
 public:
  Engine(NodeFile& file, int device, int sm_count);

  // Plays everything up to now_ns. A time that has passed already changes nothing.
  void advance(uint64_t now_ns);

  bool has_room(int context, int channel) const;
  // The item whose place in the ring the next submission takes; nullptr: none.
  const WorkItem* about_to_leave(int context, int channel) const;
  // Precondition: has_room(). Returns the item's number in its channel.
  uint64_t submit(int context, int channel, const Work& work);
  void finish_spin(int context, int channel, uint64_t number);

  // A time before which the item cannot be completed, unless a context goes or a spin is finished; kNever if
  // only finish_spin() lets it. Never wrong, and tight enough to sleep by: exact for a context that is alone.
  uint64_t earliest_completion_ns(int context, int channel, uint64_t number) const;

  // Takes the context's work away, running or not. The entry can then be given back.
  void drop_work(int context);

  // Brings the busy sums and histories up to the present.
  void settle_busy();

  void commit() { journal_.commit(); }
  void recover();

  Journal& journal() { return journal_; }

 private:
  WorkItem& item(int context, int channel, uint64_t number) const;
  WorkItem& head(int context, int channel) const;
  uint32_t sms_of(const WorkItem& work) const;
  bool is_done(int context, uint64_t after) const;
  bool may_start(int context, const WorkItem& work) const;

  uint64_t next_event_ns() const;
  void play_events();
  void examine(int context, uint32_t channels);
  void complete(int context, int channel);
  void make_runnable(int context, int channel, const WorkItem& work);
  void dispatch();
  void begin_turn(int next);
  void start_kernels(int context);
  void stop_kernels(int context);
  void end_switch();

  void push_ready(int context);
  int pop_ready();
  void remove_ready(int context);
  void push_copy(int context, int channel);
  void start_copy();
  void remove_copies(int context);

  uint64_t next_kernel_end_ns() const;
  uint64_t earliest_idle_ns() const;
  uint64_t earliest_sms_ns(int context) const;
  uint64_t earliest_completion_ns(int context, int channel, uint64_t number, int depth) const;

  NodeFile& file_;
  Device& device_;
  uint32_t sm_count_;
  Journal journal_;
};

}  // namespace sim
