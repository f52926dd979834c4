// SPDX-License-Identifier: Apache-2.0
#include "interpose/outstanding.h"

#include <new>

#include "interpose/syscalls.h"

namespace gate {

using hook::real;
namespace fn = hook::fn;

constinit FutexLock books_lock;
constinit limiter::KernelEstimates estimates;
constinit thread_local uint32_t inside = 0;

namespace {

constinit Context contexts[kMaxContexts] = {};
constinit Stream streams[kMaxStreams] = {};
constinit std::atomic<uint32_t> captures;

// The handles of streams that were closed while dirty, by their hash. Bits are never taken off: one too many
// costs an entry and an event.
constexpr uint32_t kNotedBits = 4096;
constinit std::atomic<uint64_t> noted_handles[kNotedBits / 64];

constexpr uint32_t kReach = 8;  // entries from its home in which a stream may be

uint32_t home_of(CUstream handle, const Context* context) {
  auto bits = reinterpret_cast<uint64_t>(handle);
  if (handle == CU_STREAM_LEGACY) bits ^= reinterpret_cast<uint64_t>(context);
  return static_cast<uint32_t>(limiter::launch_key(bits) >> 32) % kMaxStreams;
}

uint32_t noted_bit(CUstream handle) {
  return static_cast<uint32_t>(limiter::launch_key(reinterpret_cast<uint64_t>(handle)) >> 32) % kNotedBits;
}

// Before the stream's entry is left without being dirty.
void clean(Stream& stream) {
  if (!stream.dirty) return;
  stream.dirty = false;
  uint32_t bit = noted_bit(stream.handle);
  noted_handles[bit / 64].fetch_or(uint64_t{1} << bit % 64, std::memory_order_release);
}

bool is_stream(const Stream& entry, CUstream handle, const Context* context) {
  return entry.handle == handle && (handle != CU_STREAM_LEGACY || entry.context == context);
}

void refresh_oldest(SliceGate& gate) {
  uint64_t oldest_ns =
      gate.batch_count > 0 ? gate.batches[gate.first_batch].estimate_ns : gate.backlog.estimate_ns;
  if (oldest_ns == gate.backlog.oldest_ns) return;
  gate.backlog.oldest_ns = oldest_ns;
  if (gate.outstanding)
    gate.work().outstanding.store(shm::outstanding_word(oldest_ns), std::memory_order_relaxed);
}

void count(SliceGate& gate, uint32_t kernels, uint64_t estimate_ns, uint64_t now_ns) {
  if (gate.backlog.kernels == 0) gate.backlog.progress_ns = now_ns;
  gate.backlog.kernels += kernels;
  gate.backlog.estimate_ns += estimate_ns;
  refresh_oldest(gate);
  if (gate.outstanding) return;
  gate.outstanding = true;
  gate.work().active_at_ns.store(now_ns, std::memory_order_relaxed);
  gate.work().outstanding.store(shm::outstanding_word(gate.backlog.oldest_ns), std::memory_order_release);
}

// Brings Work.active_ns up to the present. A reader between the two stores sees less than there was.
void account_active(SliceGate& gate, uint64_t now_ns) {
  shm::Work& work = gate.work();
  uint64_t since_ns = work.active_at_ns.load(std::memory_order_relaxed);
  if (!gate.outstanding || now_ns <= since_ns) return;
  work.active_at_ns.store(now_ns, std::memory_order_relaxed);
  work.active_ns.store(work.active_ns.load(std::memory_order_relaxed) + now_ns - since_ns,
                       std::memory_order_release);
}

void discount(SliceGate& gate, uint32_t kernels, uint64_t estimate_ns) {
  limiter::Backlog& backlog = gate.backlog;
  backlog.kernels -= kernels < backlog.kernels ? kernels : backlog.kernels;
  backlog.estimate_ns -= estimate_ns < backlog.estimate_ns ? estimate_ns : backlog.estimate_ns;
  refresh_oldest(gate);
}

struct Part {
  uint32_t kernels;
  uint64_t estimate_ns;
};

// The launches of a stream that an event covers anew when it covers those up to `up_to`.
Part cover(Stream& stream, uint32_t up_to) {
  uint32_t uncovered = stream.begun - stream.covered;
  auto kernels = static_cast<int32_t>(up_to - stream.covered);
  if (kernels <= 0 || uncovered == 0) return {0, 0};
  Part part = {static_cast<uint32_t>(kernels), stream.uncovered_ns};
  if (part.kernels < uncovered) part.estimate_ns = stream.uncovered_ns / uncovered * part.kernels;
  stream.covered = up_to;
  stream.uncovered_ns -= part.estimate_ns;
  return part;
}

// Created in the context, whatever context is current.
template <typename Create>
CUresult create_in(CUcontext context, Create create) {
  CUcontext current = nullptr;
  real<fn::cuCtxGetCurrent>(&current);
  if (current == context) return create();
  CUresult result = real<fn::cuCtxPushCurrent_v2>(context);
  if (result != CUDA_SUCCESS) return result;
  result = create();
  real<fn::cuCtxPopCurrent_v2>(&current);
  return result;
}

CUstream probe_of(Context& context) {
  {
    Books books;
    if (context.probe != nullptr || context.closing) return context.probe;
  }
  CUstream probe = nullptr;
  CUresult result = create_in(context.handle, [&probe] {
    return real<fn::cuStreamCreate>(&probe, static_cast<unsigned>(CU_STREAM_DEFAULT));
  });
  if (result != CUDA_SUCCESS) return nullptr;
  CUstream chosen, spare = nullptr;
  {
    Books books;
    if (context.probe == nullptr)
      context.probe = probe;
    else
      spare = probe;
    chosen = context.probe;
  }
  if (spare != nullptr) real<fn::cuStreamDestroy_v2>(spare);
  return chosen;
}

}  // namespace

void forget_everything() {
  books_lock.reset();
  captures.store(0, std::memory_order_relaxed);
  for (auto& word : noted_handles) word.store(0, std::memory_order_relaxed);
  for (Context& context : contexts) context.handle = nullptr;
  for (Stream& stream : streams) {
    stream.~Stream();
    new (&stream) Stream();
  }
}

// --- Captures.

void capture_began() { captures.fetch_add(1, std::memory_order_seq_cst); }

void capture_ended() {
  uint32_t count = captures.load(std::memory_order_relaxed);
  while (count > 0 && !captures.compare_exchange_weak(count, count - 1, std::memory_order_seq_cst)) {
  }
}

RelaxedCapture::RelaxedCapture() : exchanged_(may_be_capturing()) {
  mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (exchanged_) exchanged_ = real<fn::cuThreadExchangeStreamCaptureMode>(&mode_) == CUDA_SUCCESS;
}

RelaxedCapture::~RelaxedCapture() {
  if (exchanged_) real<fn::cuThreadExchangeStreamCaptureMode>(&mode_);
}

bool may_be_capturing() { return captures.load(std::memory_order_seq_cst) != 0; }

bool is_capturing(const StreamName& name) {
  if (!may_be_capturing()) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = real<fn::cuStreamIsCapturing>(name.plain(), &status);
  return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// --- Contexts and streams.

Context* find_context(const Books&, CUcontext handle) {
  for (Context& context : contexts) {
    if (context.handle == handle && !context.closing) return &context;
  }
  return nullptr;
}

Context* add_context(const Books& books, CUcontext handle, SliceGate& gate) {
  if (Context* known = find_context(books, handle)) return known;
  for (Context& context : contexts) {
    if (context.handle != nullptr) continue;
    context = {};
    context.handle = handle;
    context.gate = &gate;
    return &context;
  }
  return nullptr;
}

bool context_in_use(CUcontext handle) {
  Books books;
  for (const Context& context : contexts) {
    if (context.handle == handle && context.closing) return true;
  }
  return false;
}

void unpin(const Books&, Context& context) {
  if (--context.pins == 0 && context.closing) context.handle = nullptr;
}

Stream* find_stream(const Books&, CUstream handle, const Context* context) {
  uint32_t home = home_of(handle, context);
  for (uint32_t i = 0; i < kReach; ++i) {
    Stream& entry = streams[(home + i) % kMaxStreams];
    if (is_stream(entry, handle, context)) return &entry;
  }
  return nullptr;
}

Stream* add_stream(const Books& books, CUstream handle, Context& context) {
  if (Stream* known = find_stream(books, handle, &context)) return known;
  uint32_t home = home_of(handle, &context);
  for (uint32_t i = 0; i < kReach; ++i) {
    Stream& entry = streams[(home + i) % kMaxStreams];
    if (!entry.unused()) continue;
    entry.handle = handle;
    entry.context = &context;
    entry.uncovered_ns = 0;
    return &entry;
  }
  return nullptr;
}

void close_stream(const Books& books, Stream& stream, bool ends) {
  give_up(books, *stream.context->gate, &stream, stream.begun, 0);
  clean(stream);
  if (ends) stream.handle = nullptr;
}

bool may_be_noted(CUstream handle) {
  uint32_t bit = noted_bit(handle);
  return (noted_handles[bit / 64].load(std::memory_order_acquire) >> bit % 64 & 1) != 0;
}

PinnedStream pin(const Books&, Stream& stream) {
  stream.pinned = true;
  ++stream.context->pins;
  return {&stream, stream.handle, stream.begun};
}

PinnedStream pin_uncovered(const Books& books, const SliceGate& gate) {
  for (Stream& stream : streams) {
    if (stream.begun == stream.covered || stream.pinned || !stream.all_returned()) continue;
    if (stream.context->gate != &gate || stream.context->closing) continue;
    return pin(books, stream);
  }
  return {};
}

void cover_pinned(SliceGate& gate, const PinnedStream& pinned) {
  Stream& stream = *pinned.stream;
  Context& context = *stream.context;
  CUevent end = nullptr;
  bool recorded = false;
  if (!is_capturing({pinned.handle, false})) {
    RelaxedCapture relaxed;
    end = take_event(context);
    recorded = record(context, pinned.handle, end);
  }
  Books books;
  if (recorded && !context.closing) {
    add_batch(books, gate, &stream, pinned.up_to, {.context = &context, .end = end, .late = true});
  } else {
    give_event(books, context, end);
    give_up(books, gate, &stream, pinned.up_to, 0);
  }
  stream.pinned = false;
  unpin(books, context);
}

void adopt_dirty_streams(const Books&, SliceGate& gate, uint64_t now_ns) {
  gate.dirty = false;
  for (Stream& stream : streams) {
    if (!stream.dirty || stream.context->gate != &gate) continue;
    stream.dirty = false;
    ++stream.begun;
    stream.returned.fetch_add(1, std::memory_order_release);
    stream.uncovered_ns += limiter::KernelEstimates::kUnknownNs;
    count(gate, 1, limiter::KernelEstimates::kUnknownNs, now_ns);
  }
}

// --- Launches and batches.

void begin_launch(const Books&, Launch& launch, bool wants_sample, const limiter::GateView& view,
                  uint64_t now_ns) {
  SliceGate& gate = *launch.gate;
  shm::Work& work = gate.work();
  work.launches.store(work.launches.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);

  launch.first = gate.backlog.kernels == 0;
  count(gate, 1, launch.estimate_ns, now_ns);
  launch.measured = launch.first || wants_sample;
  if (Stream* stream = launch.stream; stream != nullptr) {
    launch.begun = ++stream->begun;
    stream->uncovered_ns += launch.estimate_ns;
    // Several batches within the run-ahead: the next launches are let in before the last one ends.
    uint64_t full_ns = view.run_ahead_ns / 4 < kBatchNs ? view.run_ahead_ns / 4 : kBatchNs;
    bool full = stream->begun - stream->covered >= kBatchLaunches || stream->uncovered_ns >= full_ns;
    launch.wants_end = launch.measured || full;
  } else {
    launch.wants_end = true;
  }
  if (launch.measured) estimates.sampling(launch.key);
}

void cancel_launch(const Books&, Launch& launch) {
  Stream* stream = launch.stream;
  if (stream == nullptr) {
    discount(*launch.gate, 1, launch.estimate_ns);
  } else if (stream->begun == stream->covered) {
    stream->returned.fetch_add(1, std::memory_order_release);  // given up with its context already
  } else {
    --stream->begun;
    stream->uncovered_ns -=
        launch.estimate_ns < stream->uncovered_ns ? launch.estimate_ns : stream->uncovered_ns;
    discount(*launch.gate, 1, launch.estimate_ns);
  }
}

void add_batch(const Books& books, SliceGate& gate, Stream* stream, uint32_t up_to, Batch batch) {
  Part part = stream == nullptr ? Part{1, batch.estimate_ns} : cover(*stream, up_to);
  batch.kernels = part.kernels;
  batch.estimate_ns = part.estimate_ns;
  if (gate.batch_count < kMaxBatches) {
    gate.batches[(gate.first_batch + gate.batch_count++) % kMaxBatches] = batch;
  } else {
    Batch& newest = gate.batches[(gate.first_batch + gate.batch_count - 1) % kMaxBatches];
    newest.kernels += batch.kernels;
    newest.estimate_ns += batch.estimate_ns;
    give_event(books, *batch.context, batch.begin);
    give_event(books, *batch.context, batch.end);
  }
  refresh_oldest(gate);
}

void give_up(const Books&, SliceGate& gate, Stream* stream, uint32_t up_to, uint64_t estimate_ns) {
  Part part = stream == nullptr ? Part{1, estimate_ns} : cover(*stream, up_to);
  discount(gate, part.kernels, part.estimate_ns);
}

void end_batch(const Books&, SliceGate& gate, uint64_t now_ns) {
  const Batch& batch = gate.batches[gate.first_batch];
  Part part = {batch.kernels, batch.estimate_ns};
  gate.first_batch = (gate.first_batch + 1) % kMaxBatches;
  --gate.batch_count;
  gate.backlog.progress_ns = now_ns;
  account_active(gate, now_ns);
  discount(gate, part.kernels, part.estimate_ns);
}

void drop_context(const Books& books, Context& context) {
  for (Stream& stream : streams) {
    if (stream.handle == nullptr || stream.context != &context) continue;
    close_stream(books, stream, true);
  }
  SliceGate& gate = *context.gate;
  for (uint32_t i = 0; i < gate.batch_count; ++i) {
    Batch& batch = gate.batches[(gate.first_batch + i) % kMaxBatches];
    if (batch.context == &context) batch.context = nullptr;
  }
  context.closing = true;
  if (context.pins == 0) context.handle = nullptr;
}

bool settle(const Books&, SliceGate& gate, uint64_t now_ns) {
  if (!gate.outstanding || gate.backlog.kernels > 0) return false;
  account_active(gate, now_ns);
  gate.outstanding = false;
  shm::Work& work = gate.work();
  work.drained_ns.store(now_ns, std::memory_order_relaxed);
  work.outstanding.store(0, std::memory_order_release);
  return (gate.line().others.load(std::memory_order_relaxed) & shm::kOthersWait) != 0 ||
         work.waiting.load(std::memory_order_relaxed) != 0;
}

limiter::Backlog slice_backlog(const SliceGate& gate) {
  limiter::Backlog sum;
  uint32_t slots = gate.state->header.slots_high.load(std::memory_order_acquire);
  if (slots > shm::kMaxSlots) slots = shm::kMaxSlots;
  for (uint32_t slot = 0; slot < slots; ++slot) {
    if (shm::slot_state(gate.state->slots[slot].owner.load(std::memory_order_acquire)) != shm::kSlotLive)
      continue;
    const shm::Work& work = gate.state->work[slot];
    uint32_t word = work.outstanding.load(std::memory_order_acquire);
    uint64_t seen_ns = work.active_at_ns.load(std::memory_order_relaxed);
    if (seen_ns > sum.progress_ns) sum.progress_ns = seen_ns;
    if (word == 0) continue;
    ++sum.kernels;
    if (shm::outstanding_ns(word) > sum.oldest_ns) sum.oldest_ns = shm::outstanding_ns(word);
  }
  return sum;
}

void ring(SliceGate& gate) {
  std::atomic<uint32_t>& rings = gate.state->doorbell.rings;
  rings.fetch_add(1, std::memory_order_seq_cst);
  hook::futex_wake(&rings, 1, true);
}

bool call_watcher(const Books&, SliceGate& gate) {
  gate.errands.fetch_add(1, std::memory_order_release);
  bool sleeps = gate.watcher_sleeps;
  gate.watcher_sleeps = false;
  return sleeps;
}

void wake_watcher(SliceGate& gate) { hook::futex_wake(&gate.errands, 1, false); }

// --- Events.

CUevent take_event(Context& context) {
  {
    Books books;
    if (context.closing) return nullptr;
    if (context.spare_count > 0) return context.spares[--context.spare_count];
  }
  CUevent event = nullptr;
  CUresult result = create_in(context.handle, [&event] {
    return real<fn::cuEventCreate>(&event, static_cast<unsigned>(CU_EVENT_BLOCKING_SYNC));
  });
  return result == CUDA_SUCCESS ? event : nullptr;
}

// More than the pool holds were under way at once; the ones too many stay with their context.
void give_event(const Books&, Context& context, CUevent event) {
  if (event == nullptr || context.closing || context.spare_count == kMaxSpareEvents) return;
  context.spares[context.spare_count++] = event;
}

bool record(Context& context, CUstream stream, CUevent event) {
  if (stream == CU_STREAM_LEGACY) stream = probe_of(context);
  return stream != nullptr && event != nullptr && real<fn::cuEventRecord>(event, stream) == CUDA_SUCCESS;
}

}  // namespace gate
