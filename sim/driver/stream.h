// SPDX-License-Identifier: Apache-2.0
//
// Streams: what is done in order. Most work goes to the node's channels as it is called; it costs a
// submission and no thread. Work that the CPU must do at its time (host functions, waits for a value in
// memory, waits for another device) goes to the stream's queue together with all that follows it, until the
// stream's own thread has done it.
//
// Kernels compute nothing, so a copy is done at the call when no CPU work is ahead of it: nobody can tell.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "sim/driver/api.h"
#include "sim/driver/context.h"
#include "sim/node.h"

namespace sim {

struct Capture;
struct GraphPlan;
struct GraphRange;

// A point in a stream's work: done when all before it is. Thread-safe.
class Moment {
 public:
  // A point that is still in a stream's queue; place() follows.
  Moment() = default;
  Moment(CUctx_st* context, Ticket ticket) { Moment::place(context, ticket); }
  virtual ~Moment() = default;
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;

  // Says where in the node's channels the point is. From then on waits are the node's.
  virtual void place(CUctx_st* context, Ticket ticket);
  virtual bool placed();
  virtual void wait_placed();

  bool done() { return done_at_ns() != 0; }
  virtual void wait();
  // When it was done, as the device's clock has it. 0: not done.
  virtual uint64_t done_at_ns();

  // Whether it is in channels that the context uses too, so that the node can wait for it. Precondition:
  // placed()
  bool shares_channels_with(const CUctx_st* context) const {
    return context_ != nullptr && context_->owner == context->owner;
  }
  Ticket ticket() const { return ticket_; }  // Precondition: placed() in channels of this process

 private:
  std::mutex mutex_;
  std::condition_variable placed_changed_;
  std::atomic<bool> placed_{false};
  CUctx_st* context_ = nullptr;
  ContextId node_context_ = kNoContext;
  Ticket ticket_;
  std::atomic<uint64_t> done_at_ns_{0};
};

// What a stream can be given to do. Also what a graph's nodes do.
struct RunKernel {
  CUDA_KERNEL_NODE_PARAMS_v3 params;  // kernelParams and extra are the caller's and not used
  uint64_t duration_ns;
  uint32_t sms;
  Partition partition;
};
struct CopyMemory {
  CUDA_MEMCPY3D params;
};
struct SetMemory {
  CUDA_MEMSET_NODE_PARAMS_v2 params;
};
struct CallHost {
  CUhostFn function;
  void* data;
};
struct Record {
  MomentPtr moment;
  bool timed;
};
struct Await {
  MomentPtr moment;
};
struct WriteValue {
  CUdeviceptr address;
  uint64_t value;
  bool wide;  // 64 bits
};
struct WaitValue {
  CUdeviceptr address;
  uint64_t value;
  unsigned flags;  // CU_STREAM_WAIT_VALUE_*
  bool wide;
};
struct FreeMemory {
  CUdeviceptr address;
};
struct Nothing {};
// Only in graphs: what they mean is known when the graph is launched.
struct RecordEvent {
  CUevent event;
};
struct AwaitEvent {
  CUevent event;
};
struct AllocateMemory {
  CUDA_MEM_ALLOC_NODE_PARAMS_v2 params;
  CUdevice device;
  std::shared_ptr<const GraphRange> range;  // of params.dptr
};
struct RunGraph {
  std::shared_ptr<CUgraph_st> graph;
};
using Action = std::variant<Nothing, RunKernel, CopyMemory, SetMemory, CallHost, Record, Await, WriteValue,
                            WaitValue, FreeMemory, RecordEvent, AwaitEvent, AllocateMemory, RunGraph>;

// A place in one of a context's channels: what was submitted last, and what the next submission has to wait
// for.
struct Lane {
  CUctx_st* context;
  int channel;
  Ticket last;
  std::vector<Ticket> joins;
};

}  // namespace sim

struct CUstream_st {
  static constexpr uint32_t kMagic = 0x73747231;
  uint32_t magic = kMagic;
  CUctx_st* const context;
  const unsigned flags;
  const int priority;
  const uint64_t id;
  CUstreamAttrValue attributes[CU_LAUNCH_ATTRIBUTE_MAX] = {};

  std::mutex mutex;  // guards what follows
  sim::Lane lane;
  std::deque<sim::Action> queue;  // the front is what the stream's thread is doing
  std::condition_variable queue_changed;
  bool has_thread = false;
  bool destroyed = false;
  std::shared_ptr<sim::Capture> capture;
  std::vector<CUgraphNode> frontier;  // of the capture: what the next captured node depends on

  std::atomic<bool> capturing{false};
  std::atomic<uint64_t> work{
      0};  // operations so far; the legacy stream compares it with what it has waited for
  uint64_t work_seen_by_legacy = 0;  // guarded by context->mutex
  std::atomic<uint64_t> legacy_work_seen{0};

  CUstream_st(CUctx_st* context, unsigned flags, int priority, int channel);

  bool is_legacy() const { return context->legacy == this; }
  bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
};

namespace sim {

// The stream that a caller's handle means, NULL and the special handles included.
CUresult find_stream(CUstream handle, CUstream_st** stream);

// A channel for a stream. Streams share those that are not the legacy stream's, as they share hardware
// queues.
int choose_channel(CUctx_st* context);

CUstream_st* make_stream(CUctx_st* context, unsigned flags, int priority);
// Ends a stream that is in no list any more: at once, or when its thread has done what it was given.
void end_stream(CUstream_st* stream, bool drop_work);

// Has the stream do it, after what the stream and its implicit partners have been given before; a capturing
// stream makes it a node of its graph.
CUresult perform(CUstream_st* stream, Action action);
// The same for a stream that does not capture.
void enqueue(CUstream_st* stream, Action action);
// Runs a graph's plan in the stream.
void enqueue_plan(CUstream_st* stream, const GraphPlan& plan);

// The point after all that the stream has been given.
MomentPtr end_of(CUstream_st* stream);
MomentPtr record_in(CUstream_st* stream, bool timed);

// Waits for all of the context's streams.
CUresult synchronize_context(CUctx_st* context);
CUresult synchronize_stream(CUstream_st* stream);

// Ends all streams of a context that goes away; work that has not begun is dropped.
void destroy_streams(CUctx_st* context);

// Error of a function that may not be called on a capturing stream; the capture is invalid from then on.
CUresult refuse_capturing(CUstream_st* stream);

}  // namespace sim
