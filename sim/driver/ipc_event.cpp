// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/ipc_event.h"

#include <time.h>

#include <array>
#include <cstring>
#include <new>

#include "sim/driver/arena.h"
#include "sim/driver/event.h"
#include "sim/driver/ipc.h"

namespace sim {

// Written and read without a lock by all processes that have the event: any of them can be killed at any
// time.
struct EventRecords {
  struct Entry {
    std::atomic<uint64_t> number{0};  // of the record, from 1; stored last
    std::atomic<int32_t> context{kNoContext};
    std::atomic<uint32_t> generation{0};
    std::atomic<uint64_t> place{0};  // in_queue(number), then the packed ticket
  };

  std::atomic<uint64_t> next{0};
  std::atomic<uint64_t> last{0};  // the newest that has an entry; 0: none
  // A record that was overwritten, by the sixteenth after it, counts as done.
  std::array<Entry, 16> entries;

  Entry& entry(uint64_t number) { return entries[number % entries.size()]; }
};

namespace {

// Where a record is, in one word: a packed ticket, or one of these.
constexpr uint64_t kInQueue = 1ull << 63;    // still in a stream's queue; the rest is the record's number
constexpr uint64_t kNowhere = kInQueue - 1;  // dropped, or there was nothing to wait for

constexpr uint64_t in_queue(uint64_t number) { return kInQueue | number; }
constexpr uint64_t pack(const Ticket& ticket) {
  return ticket.channel < 0 ? kNowhere : static_cast<uint64_t>(ticket.channel) << 48 | ticket.number;
}
constexpr Ticket unpack(uint64_t place) {
  if ((place & kInQueue) != 0) return {0, UINT64_MAX};  // done only once its context is gone
  if (place == kNowhere) return {};
  return {static_cast<int32_t>(place >> 48), place & ((1ull << 48) - 1)};
}

struct EventHandle {
  static constexpr uint32_t kMagic = 0x69706532;
  uint32_t magic;
  SharedRange range;
};
static_assert(sizeof(EventHandle) <= sizeof(CUipcEventHandle));

constexpr timespec kPollInterval{0, 20'000};

}  // namespace

// A record of this process.
class OwnRecord : public Moment {
 public:
  OwnRecord(std::shared_ptr<SharedEvent> event, uint64_t number)
      : event_(std::move(event)), number_(number) {}

  void place(CUctx_st* context, Ticket ticket) override {
    Moment::place(context, ticket);
    uint64_t expected = in_queue(number_);  // another number if the entry is another record's by now
    event_->records_->entry(number_).place.compare_exchange_strong(expected, pack(ticket));
  }

  uint64_t number() const { return number_; }

 private:
  const std::shared_ptr<SharedEvent> event_;
  const uint64_t number_;
};

// A record of another process, or of one that is gone.
class OtherRecord : public Moment {
 public:
  OtherRecord(std::shared_ptr<SharedEvent> event, uint64_t number)
      : event_(std::move(event)), number_(number) {}

  bool placed() override { return !queued() || done(); }
  void wait_placed() override {
    while (!placed()) nanosleep(&kPollInterval, nullptr);
  }
  void wait() override {
    while (!done()) nanosleep(&kPollInterval, nullptr);
  }
  uint64_t done_at_ns() override {
    if (done_.load(std::memory_order_relaxed)) return kSomeTime;
    const EventRecords::Entry& entry = event_->records_->entry(number_);
    const SharedTicket record{entry.context.load(), entry.generation.load(), unpack(entry.place.load())};
    if (entry.number.load() == number_ && !Node::get().completed(record)) return 0;
    done_.store(true, std::memory_order_relaxed);
    return kSomeTime;
  }

 private:
  // Events between processes have no times.
  static constexpr uint64_t kSomeTime = 1;

  bool queued() const { return event_->records_->entry(number_).place.load() == in_queue(number_); }

  const std::shared_ptr<SharedEvent> event_;
  const uint64_t number_;
  std::atomic<bool> done_{false};
};

std::shared_ptr<SharedEvent> SharedEvent::make() {
  const uint64_t address = arena_allocate(kGranule);
  if (address == 0) return nullptr;
  auto* records = new (reinterpret_cast<void*>(address)) EventRecords;
  return std::shared_ptr<SharedEvent>(new SharedEvent(records, true));
}

CUresult SharedEvent::open(const CUipcEventHandle& opaque, std::shared_ptr<SharedEvent>* event) {
  EventHandle handle;
  memcpy(&handle, &opaque, sizeof handle);
  if (handle.magic != EventHandle::kMagic || handle.range.bytes != sizeof(EventRecords)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* records;
  if (CUresult error = map_range(handle.range, &records)) return error;
  event->reset(new SharedEvent(static_cast<EventRecords*>(records), false));
  return CUDA_SUCCESS;
}

SharedEvent::~SharedEvent() {
  if (ours_) {
    arena_release(reinterpret_cast<uint64_t>(records_), kGranule);
  } else {
    unmap_range(records_, sizeof(EventRecords));
  }
}

CUresult SharedEvent::export_to(CUipcEventHandle* opaque) const {
  EventHandle handle{EventHandle::kMagic, {}};
  if (CUresult error =
          share_range(reinterpret_cast<uint64_t>(records_), sizeof(EventRecords), &handle.range)) {
    return error;
  }
  memset(opaque, 0, sizeof *opaque);
  memcpy(opaque, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

MomentPtr SharedEvent::last(const std::shared_ptr<SharedEvent>& event, const MomentPtr& own) {
  const uint64_t number = event->records_->last.load();
  if (number == 0) return nullptr;
  if (own != nullptr && static_cast<const OwnRecord&>(*own).number() == number) return own;
  return std::make_shared<OtherRecord>(event, number);
}

MomentPtr SharedEvent::renew(const std::shared_ptr<SharedEvent>& event, CUctx_st* context) {
  EventRecords& records = *event->records_;
  const uint64_t number = records.next.fetch_add(1) + 1;
  const SharedTicket place = Node::get().shared(context->node_context, {});
  EventRecords::Entry& entry = records.entry(number);
  entry.number.store(0);
  entry.context.store(place.context);
  entry.generation.store(place.generation);
  entry.place.store(in_queue(number));
  entry.number.store(number);
  uint64_t last = records.last.load();
  while (last < number && !records.last.compare_exchange_weak(last, number)) {
  }
  return std::make_shared<OwnRecord>(event, number);
}

}  // namespace sim

SIM_API(cuIpcGetEventHandle)(CUipcEventHandle* handle, CUevent event) {
  if (CUresult error = sim::check_event(event)) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (event->shared == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return event->shared->export_to(handle);
}

SIM_API(cuIpcOpenEventHandle)(CUevent* event, CUipcEventHandle handle) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<sim::SharedEvent> shared;
  if (CUresult error = sim::SharedEvent::open(handle, &shared)) return error;
  *event = new CUevent_st(context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, std::move(shared));
  return CUDA_SUCCESS;
}
