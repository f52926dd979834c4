// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/stream.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <thread>

#include "sim/default_stream.h"
#include "sim/driver/capture.h"
#include "sim/driver/copy.h"
#include "sim/driver/event.h"
#include "sim/driver/graph.h"
#include "sim/driver/memory.h"
#include "sim/driver/pools.h"

namespace sim {

thread_local constinit int per_thread_default_stream = 0;

namespace {

// The node keeps the completion times of a channel's last kChannelDepth tickets. Whoever submits reads the
// times that events will be asked for before they are overwritten; this many submissions are left for others
// in between.
constexpr uint64_t kTimesMargin = 64;

// A memset is a kernel: so long to start, and at this rate.
constexpr uint64_t kSetStartNs = 2'000;
constexpr uint64_t kSetBytesPerNs = 2'000;

std::atomic<uint64_t> next_stream_id{1};

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t this_thread() {
  static std::atomic<uint64_t> next{1};
  thread_local constinit uint64_t number = 0;
  if (number == 0) number = next++;
  return number;
}

void read_times(CUctx_st* context, const Ticket& newest) {
  Channel& channel = context->owner->channels[newest.channel];
  if (channel.untimed_count.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard lock(channel.mutex);
  while (!channel.untimed.empty()) {
    Moment& oldest = *channel.untimed.front();
    if (!oldest.done()) {
      if (oldest.ticket().number + kChannelDepth - kTimesMargin > newest.number) break;
      oldest.wait();
    }
    channel.untimed.pop_front();
    --channel.untimed_count;
  }
}

void read_time_later(CUctx_st* context, const MomentPtr& moment) {
  Channel& channel = context->owner->channels[moment->ticket().channel];
  std::lock_guard lock(channel.mutex);
  channel.untimed.push_back(moment);
  ++channel.untimed_count;
}

// Precondition of all functions that take a lane: its stream's mutex is held, or no other thread has it.

void submit(Lane& lane, Work work) {
  const ContextId id = lane.context->node_context;
  if (id == kNoContext) return;
  constexpr size_t kMost = 4;
  while (lane.joins.size() > kMost) {
    Work join;
    join.kind = Work::Kind::kMarker;
    join.after = lane.joins.data();
    join.after_count = kMost;
    Node::get().submit(id, lane.channel, join);
    lane.joins.erase(lane.joins.begin(), lane.joins.begin() + kMost);
  }
  work.after = lane.joins.data();
  work.after_count = static_cast<int>(lane.joins.size());
  lane.last = Node::get().submit(id, lane.channel, work);
  lane.joins.clear();
  read_times(lane.context, lane.last);
}

void submit_marker(Lane& lane) {
  Work work;
  work.kind = Work::Kind::kMarker;
  submit(lane, work);
}

void add_join(Lane& lane, const Ticket& ticket) {
  if (ticket.channel >= 0 && ticket.channel != lane.channel) lane.joins.push_back(ticket);
}

bool idle(const Lane& lane) {
  return lane.joins.empty() &&
         (lane.last.channel < 0 || Node::get().completed(lane.context->node_context, lane.last));
}

// True if the CPU has to wait before it can be done, or before it is known what to wait for.
bool must_queue(CUstream_st* stream, const Action& action) {
  if (std::holds_alternative<CallHost>(action) || std::holds_alternative<WaitValue>(action)) return true;
  if (std::holds_alternative<WriteValue>(action)) return !idle(stream->lane);
  if (const auto* await = std::get_if<Await>(&action)) {
    if (!await->moment->placed()) return true;
    return !await->moment->shares_channels_with(stream->context) && !await->moment->done();
  }
  return false;
}

void write_value(const WriteValue& write) {
  if (write.wide) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(write.address), write.value, __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(reinterpret_cast<uint32_t*>(write.address), static_cast<uint32_t>(write.value),
                     __ATOMIC_RELEASE);
  }
}

bool value_reached(const WaitValue& wait) {
  const auto* address = reinterpret_cast<const void*>(wait.address);
  const uint64_t mask = wait.wide ? ~0ull : 0xffffffffull;
  const uint64_t value = wait.wide ? __atomic_load_n(static_cast<const uint64_t*>(address), __ATOMIC_ACQUIRE)
                                   : __atomic_load_n(static_cast<const uint32_t*>(address), __ATOMIC_ACQUIRE);
  switch (wait.flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return wait.wide ? static_cast<int64_t>(value - wait.value) >= 0
                       : static_cast<int32_t>(value - wait.value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return value == (wait.value & mask);
    case CU_STREAM_WAIT_VALUE_AND:
      return (value & wait.value) != 0;
    default:
      return (~(value | wait.value) & mask) != 0;
  }
}

void run(Lane& lane, const Action& action) {
  if (const auto* kernel = std::get_if<RunKernel>(&action)) {
    Work work;
    work.duration_ns = kernel->duration_ns;
    work.sms = kernel->sms;
    work.partition = kernel->partition.number;
    work.partition_sms = static_cast<uint16_t>(kernel->partition.sms);
    submit(lane, work);
  } else if (const auto* copy = std::get_if<CopyMemory>(&action)) {
    copy_memory(copy->params);
    Work work;
    work.kind = Work::Kind::kCopy;
    if (const uint64_t rate = Node::get().settings().copy_bytes_per_us) {
      work.duration_ns = copied_bytes(copy->params) * 1000 / rate;
    }
    submit(lane, work);
  } else if (const auto* set = std::get_if<SetMemory>(&action)) {
    set_memory(set->params);
    Work work;
    work.duration_ns = kSetStartNs + set_bytes(set->params) / kSetBytesPerNs;
    submit(lane, work);
  } else if (const auto* record = std::get_if<Record>(&action)) {
    submit_marker(lane);
    record->moment->place(lane.context, lane.last);
    if (record->timed && lane.last.channel >= 0) read_time_later(lane.context, record->moment);
  } else if (const auto* await = std::get_if<Await>(&action)) {
    if (await->moment->shares_channels_with(lane.context)) add_join(lane, await->moment->ticket());
  } else if (const auto* write = std::get_if<WriteValue>(&action)) {
    write_value(*write);
  } else if (const auto* free = std::get_if<FreeMemory>(&action)) {
    if (const auto allocation = forget(free->address)) release_allocation(*allocation);
  }
}

// What the stream's thread does for an action without the lock. False: the stream's context is gone.
bool attend(CUstream_st* stream, const Action& action) {
  if (const auto* await = std::get_if<Await>(&action)) {
    await->moment->wait_placed();
    if (!await->moment->shares_channels_with(stream->context)) await->moment->wait();
    return true;
  }
  const auto* call = std::get_if<CallHost>(&action);
  const auto* wait = std::get_if<WaitValue>(&action);
  if (call == nullptr && wait == nullptr && !std::holds_alternative<WriteValue>(action)) return true;
  Ticket before;
  {
    std::lock_guard lock(stream->mutex);
    if (!stream->lane.joins.empty()) submit_marker(stream->lane);
    before = stream->lane.last;
  }
  const ContextId id = stream->context->node_context;
  if (before.channel >= 0 && id != kNoContext) Node::get().wait(id, before);
  if (call != nullptr) call->function(call->data);
  if (wait != nullptr) {
    timespec pause{0, 5'000};
    while (!value_reached(*wait)) {
      if (!stream->context->active) return false;
      nanosleep(&pause, nullptr);
    }
  }
  return true;
}

// Whoever waits for a point that will not come must not wait for ever.
void drop_queue(CUstream_st* stream, size_t keep) {
  while (stream->queue.size() > keep) {
    if (const auto* record = std::get_if<Record>(&stream->queue.back()))
      record->moment->place(stream->context, {});
    stream->queue.pop_back();
  }
}

void serve_queue(CUstream_st* stream) {
  std::unique_lock lock(stream->mutex);
  while (true) {
    stream->queue_changed.wait(lock, [&] { return !stream->queue.empty() || stream->destroyed; });
    if (stream->queue.empty()) break;
    const Action& action = stream->queue.front();  // stays in place while others push behind it
    lock.unlock();
    const bool alive = attend(stream, action);
    lock.lock();
    if (alive) {
      run(stream->lane, action);
      stream->queue.pop_front();
    } else {
      drop_queue(stream, 0);
    }
  }
  lock.unlock();
  delete stream;
}

void start_thread(CUstream_st* stream) {
  stream->has_thread = true;
  // The program's signals are the program's: none may be delivered to a thread that it does not know.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread(serve_queue, stream).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void push_or_run(CUstream_st* stream, Action action) {
  if (stream->queue.empty() && !must_queue(stream, action)) {
    run(stream->lane, action);
    return;
  }
  stream->queue.push_back(std::move(action));
  if (!stream->has_thread) start_thread(stream);
  stream->queue_changed.notify_one();
}

// A graph's step in terms of this launch.
Action concrete(const Action& action) {
  if (const auto* record = std::get_if<RecordEvent>(&action))
    return Record{renew_moment(record->event), true};
  if (const auto* await = std::get_if<AwaitEvent>(&action)) {
    const MomentPtr moment = moment_of(await->event);
    return moment == nullptr ? Action(Nothing{}) : Action(Await{moment});
  }
  return action;
}

// True for a step that would need the CPU in the middle of the graph.
bool needs_queue(const GraphStep& step) {
  if (!step.enabled) return false;
  return std::holds_alternative<CallHost>(step.action) || std::holds_alternative<WaitValue>(step.action) ||
         std::holds_alternative<WriteValue>(step.action) || std::holds_alternative<AwaitEvent>(step.action);
}

// The points that a stream's next operation has to wait for because of what kind of stream it is: the legacy
// stream waits for all blocking ones, and they for it. Takes no notice of streams without new work.
std::vector<MomentPtr> implicit_waits(CUstream_st* stream) {
  std::vector<MomentPtr> result;
  CUctx_st* context = stream->context;
  if (!stream->blocking()) return result;
  if (!stream->is_legacy()) {
    const uint64_t work = context->legacy_work;
    if (stream->legacy_work_seen.exchange(work) != work) result.push_back(end_of(context->legacy));
    return result;
  }
  const uint64_t work = context->blocking_work;
  if (context->blocking_work_seen.exchange(work) == work) return result;
  std::lock_guard lock(context->mutex);
  for (CUstream_st* other : context->streams) {
    const uint64_t its_work = other->work;
    if (!other->blocking() || other->work_seen_by_legacy == its_work) continue;
    other->work_seen_by_legacy = its_work;
    result.push_back(end_of(other));
  }
  return result;
}

void count_work(CUstream_st* stream) {
  ++stream->work;
  if (stream->is_legacy()) {
    ++stream->context->legacy_work;
  } else if (stream->blocking()) {
    ++stream->context->blocking_work;
  }
}

// Precondition: context->mutex held.
void add_stream(CUctx_st* context, CUstream_st* stream) {
  context->streams.push_back(stream);
  std::erase_if(context->awaited, [](const MomentPtr& moment) { return moment->done(); });
  for (const MomentPtr& moment : context->awaited) push_or_run(stream, Await{moment});
}

CUstream_st* thread_stream(CUctx_st* context) {
  const uint64_t thread = this_thread();
  std::lock_guard lock(context->mutex);
  CUstream_st*& stream = context->thread_streams[thread];
  if (stream == nullptr) {
    stream = new CUstream_st(context, CU_STREAM_DEFAULT, 0, choose_channel(context->owner));
    add_stream(context, stream);
  }
  return stream;
}

}  // namespace

void Moment::place(CUctx_st* context, Ticket ticket) {
  std::lock_guard lock(mutex_);
  context_ = context;
  node_context_ = context->node_context;
  ticket_ = ticket;
  if (ticket.channel < 0) done_at_ns_ = now_ns();
  placed_.store(true, std::memory_order_release);
  placed_changed_.notify_all();
}

bool Moment::placed() { return placed_.load(std::memory_order_acquire); }

void Moment::wait_placed() {
  if (placed()) return;
  std::unique_lock lock(mutex_);
  placed_changed_.wait(lock, [&] { return placed(); });
}

uint64_t Moment::done_at_ns() {
  if (const uint64_t known = done_at_ns_.load(std::memory_order_relaxed)) return known;
  if (!placed()) return 0;
  uint64_t time = 0;
  if (context_->node_context != node_context_) {
    time = now_ns();  // dropped with its context
  } else {
    time = Node::get().completed_at(node_context_, ticket_);
  }
  if (time != 0) done_at_ns_.store(time, std::memory_order_relaxed);
  return time;
}

void Moment::wait() {
  wait_placed();
  if (done()) return;
  Node::get().wait(node_context_, ticket_);
  done_at_ns();
}

CUresult find_stream(CUstream handle, CUstream_st** stream) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    CUctx_st* context;
    if (CUresult error = current_context(&context)) return error;
    const bool per_thread =
        handle == CU_STREAM_PER_THREAD || (handle == nullptr && per_thread_default_stream > 0);
    *stream = per_thread ? thread_stream(context) : context->legacy;
    return CUDA_SUCCESS;
  }
  if (CUresult error = ready()) return error;
  if (handle->magic != CUstream_st::kMagic) return CUDA_ERROR_INVALID_HANDLE;
  if (!handle->context->active) {
    return handle->context->green != nullptr ? CUDA_ERROR_STREAM_DETACHED : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (CUresult error = device_fault(handle->context->device)) return error;
  *stream = handle;
  return CUDA_SUCCESS;
}

int choose_channel(CUctx_st* context) {
  return 1 + static_cast<int>(context->next_channel.fetch_add(1) % (kChannelsPerContext - 1));
}

void enqueue(CUstream_st* stream, Action action) {
  std::vector<MomentPtr> waits = implicit_waits(stream);
  std::lock_guard lock(stream->mutex);
  for (MomentPtr& wait : waits) push_or_run(stream, Await{std::move(wait)});
  push_or_run(stream, std::move(action));
  count_work(stream);
}

CUresult perform(CUstream_st* stream, Action action) {
  if (stream->capturing.load(std::memory_order_relaxed)) return capture_action(stream, std::move(action));
  if (CUresult error = refuse_legacy_during_capture(stream)) return error;
  enqueue(stream, std::move(action));
  return CUDA_SUCCESS;
}

void enqueue_plan(CUstream_st* stream, const GraphPlan& plan) {
  std::vector<MomentPtr> waits = implicit_waits(stream);
  std::lock_guard lock(stream->mutex);
  for (MomentPtr& wait : waits) push_or_run(stream, Await{std::move(wait)});
  count_work(stream);
  const bool one_by_one =
      !stream->queue.empty() || std::any_of(plan.steps.begin(), plan.steps.end(), needs_queue);
  if (one_by_one) {
    for (const GraphStep& step : plan.steps) {
      if (step.enabled) push_or_run(stream, concrete(step.action));
    }
    return;
  }
  // Branches run beside each other on neighbouring channels. Each step is submitted after what it depends on,
  // so no channel waits in a circle.
  submit_marker(stream->lane);
  const Ticket start = stream->lane.last;
  std::vector<Ticket> done(plan.steps.size());
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const GraphStep& step = plan.steps[i];
    const int neighbour = 1 + (stream->lane.channel + step.branch) % (kChannelsPerContext - 1);
    Lane lane{stream->context, step.branch == 0 ? stream->lane.channel : neighbour, {}, {}};
    if (step.after.empty()) add_join(lane, start);
    for (const int dependency : step.after) add_join(lane, done[dependency]);
    if (step.enabled) run(lane, concrete(step.action));
    // A step that submitted nothing is still a point that others wait for.
    if (lane.last.channel < 0) submit_marker(lane);
    done[i] = lane.last;
    if (step.is_end) add_join(stream->lane, lane.last);
  }
  submit_marker(stream->lane);
}

CUstream_st* make_stream(CUctx_st* context, unsigned flags, int priority) {
  std::lock_guard lock(context->mutex);
  auto* stream = new CUstream_st(context, flags, priority, choose_channel(context->owner));
  add_stream(context, stream);
  return stream;
}

void end_stream(CUstream_st* stream, bool drop_work) {
  std::unique_lock lock(stream->mutex);
  stream->magic = 0;
  stream->destroyed = true;
  if (drop_work) drop_queue(stream, std::min<size_t>(stream->queue.size(), 1));
  if (stream->has_thread) {
    stream->queue_changed.notify_one();  // its thread deletes it
    return;
  }
  lock.unlock();
  delete stream;
}

MomentPtr end_of(CUstream_st* stream) {
  std::lock_guard lock(stream->mutex);
  if (stream->queue.empty() && stream->lane.joins.empty()) {
    return std::make_shared<Moment>(stream->context, stream->lane.last);
  }
  auto moment = std::make_shared<Moment>();
  push_or_run(stream, Record{moment, false});
  return moment;
}

MomentPtr record_in(CUstream_st* stream, bool timed) {
  auto moment = std::make_shared<Moment>();
  enqueue(stream, Record{moment, timed});
  return moment;
}

CUresult synchronize_stream(CUstream_st* stream) {
  const bool others_first =
      stream->is_legacy() && stream->context->blocking_work != stream->context->blocking_work_seen;
  const MomentPtr end = others_first ? record_in(stream, false) : end_of(stream);
  end->wait();
  release_idle_pool_memory(stream->context->device);
  return CUDA_SUCCESS;
}

CUresult synchronize_context(CUctx_st* context) {
  std::vector<MomentPtr> queued;
  {
    std::lock_guard lock(context->mutex);
    for (CUstream_st* stream : context->streams) queued.push_back(end_of(stream));
  }
  queued.push_back(end_of(context->legacy));
  for (const MomentPtr& moment : queued) moment->wait();
  // A green context's channels are its primary's too.
  if (context->green != nullptr) return CUDA_SUCCESS;
  // Streams that were destroyed with work ahead of them are not in the list.
  const ContextId id = context->node_context;
  if (id == kNoContext) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Node::get().wait(id, Node::get().submit_join(id, 0));
  release_idle_pool_memory(context->device);
  return CUDA_SUCCESS;
}

void destroy_streams(CUctx_st* context) {
  std::vector<CUstream_st*> streams;
  {
    std::lock_guard lock(context->mutex);
    streams.swap(context->streams);
    context->thread_streams.clear();
  }
  for (CUstream_st* stream : streams) end_stream(stream, true);
  end_stream(std::exchange(context->legacy, new CUstream_st(context, CU_STREAM_DEFAULT, 0, 0)), true);
}

CUresult refuse_capturing(CUstream_st* stream) {
  if (!stream->capturing) return CUDA_SUCCESS;
  invalidate_capture(stream);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace sim

CUstream_st::CUstream_st(CUctx_st* context, unsigned flags, int priority, int channel)
    : context(context),
      flags(flags),
      priority(priority),
      id(sim::next_stream_id++),
      lane{context, channel, {}, {}} {}
