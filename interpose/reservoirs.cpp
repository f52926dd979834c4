// SPDX-License-Identifier: Apache-2.0
#include "interpose/reservoirs.h"

#include <sys/mman.h>

#include "interpose/futex_lock.h"
#include "interpose/outstanding.h"
#include "limiter/address_table.h"

namespace hook {
namespace {

struct Entry {
  uint64_t key;  // 0: free
  Reservoir reservoir;
  SliceGpu gpu;              // whose slice is charged; nobody if there is none
  uint64_t covered_bytes;    // charged to the slice
  uint64_t in_flight_bytes;  // the part of it that calls under way have taken for growth
  uint32_t changes;          // to tell whether a reading of the driver's figure is still fresh
};

// Entries never move and their pages are never given back, so that a walk can be continued after the lock was
// free.
struct Page {
  static constexpr int kEntries = 63;
  Page* next;
  Entry entries[kEntries];
};
static_assert(sizeof(Page) <= 4096);

constinit gate::FutexLock books;  // of everything below; never held across a call into the driver
constinit limiter::AddressTable entry_by_key;
constinit Page* pages = nullptr;

constinit std::atomic<bool> any_returned{false};

Entry* find_locked(uint64_t key) {
  uint64_t value;
  return entry_by_key.find(key, &value) ? reinterpret_cast<Entry*>(value) : nullptr;
}

Entry* free_entry_locked() {
  for (Page* page = pages; page != nullptr; page = page->next) {
    for (Entry& entry : page->entries) {
      if (entry.key == 0) return &entry;
    }
  }
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* page = static_cast<Page*>(memory);
  page->next = pages;
  pages = page;
  return &page->entries[0];
}

bool insert_locked(const Entry& wanted) {
  Entry* entry = free_entry_locked();
  if (entry == nullptr || !entry_by_key.insert(wanted.key, reinterpret_cast<uint64_t>(entry))) return false;
  *entry = wanted;
  return true;
}

// Goes over the reservoirs of a GPU. The lock is free between two steps: one that comes or goes meanwhile may
// be missed.
class Walk {
 public:
  explicit Walk(const SliceGpu& gpu) : gpu_(gpu) {
    const gate::Locked locked(books);
    page_ = pages;
  }

  bool next(uint64_t* key) {
    const gate::Locked locked(books);
    for (; page_ != nullptr; page_ = page_->next, index_ = 0) {
      while (index_ < Page::kEntries) {
        const Entry& entry = page_->entries[index_++];
        if (entry.key == 0 || !same_gpu(entry.gpu, gpu_)) continue;
        *key = entry.key;
        return true;
      }
    }
    return false;
  }

 private:
  const SliceGpu gpu_;
  Page* page_ = nullptr;
  int index_ = 0;
};

bool is_graph_memory(uint64_t key) { return (key & kGraphMemory) != 0; }
CUmemoryPool pool_of(uint64_t key) { return reinterpret_cast<CUmemoryPool>(key); }
CUdevice device_of_graph_memory(uint64_t key) { return static_cast<CUdevice>(key & ~kGraphMemory); }

bool graph_amount(CUdevice device, CUgraphMem_attribute which, uint64_t* bytes) {
  cuuint64_t answer = 0;
  if (real<fn::cuDeviceGetGraphMemAttribute>(device, which, &answer) != CUDA_SUCCESS) return false;
  *bytes = answer;
  return true;
}

bool pool_amount(CUmemoryPool pool, CUmemPool_attribute which, uint64_t* bytes) {
  cuuint64_t answer = 0;
  if (real<fn::cuMemPoolGetAttribute>(pool, which, &answer) != CUDA_SUCCESS) return false;
  *bytes = answer;
  return true;
}

bool reserved_by(uint64_t key, uint64_t* bytes) {
  return is_graph_memory(key)
             ? graph_amount(device_of_graph_memory(key), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes)
             : pool_amount(pool_of(key), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);
}

// Marks what a reservoir's change means for the broker's comparison with the driver's list.
void mark(const InFlight& call, const Reservoir& reservoir, int64_t delta_bytes) {
  add_pooled(call, delta_bytes);
  if (reservoir.managed) add_managed(call, delta_bytes);
}

}  // namespace

bool remember_reservoir(uint64_t key, const Reservoir& reservoir) {
  const SliceGpu gpu = reservoir.device == kNoDevice ? SliceGpu{} : gpu_of_device(reservoir.device);
  const gate::Locked locked(books);
  return find_locked(key) != nullptr || insert_locked({key, reservoir, gpu, 0, 0, 0});
}

bool find_reservoir(uint64_t key, Reservoir* reservoir) {
  const gate::Locked locked(books);
  const Entry* entry = find_locked(key);
  if (entry == nullptr) return false;
  *reservoir = entry->reservoir;
  return true;
}

bool reservoir_use(uint64_t key, ReservoirUse* use) {
  if (!reserved_by(key, &use->reserved_bytes)) return false;
  return is_graph_memory(key)
             ? graph_amount(device_of_graph_memory(key), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &use->used_bytes)
             : pool_amount(pool_of(key), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &use->used_bytes);
}

void note_growth(const InFlight& call, uint64_t key, uint64_t bytes) {
  const gate::Locked locked(books);
  Entry* entry = find_locked(key);
  if (entry == nullptr) return;
  entry->covered_bytes += bytes;
  entry->in_flight_bytes += bytes;
  entry->changes++;
  mark(call, entry->reservoir, static_cast<int64_t>(bytes));
}

bool settle(const InFlight& call, uint64_t key, uint64_t grown_bytes) {
  constexpr int kReadings = 4;
  Reservoir reservoir;
  uint64_t excess_bytes = 0;
  uint64_t missing_bytes = 0;
  for (int reading = 1;; reading++) {
    uint32_t changes;
    {
      const gate::Locked locked(books);
      const Entry* entry = find_locked(key);
      if (entry == nullptr) return true;
      changes = entry->changes;
    }
    uint64_t reserved_bytes;
    const bool known = reserved_by(key, &reserved_bytes);
    const gate::Locked locked(books);
    Entry* entry = find_locked(key);
    if (entry == nullptr) return true;
    // Another call came between: its reading may be newer than ours.
    if (known && entry->changes != changes && reading < kReadings) continue;
    reservoir = entry->reservoir;
    entry->in_flight_bytes -= grown_bytes;
    entry->changes++;
    const uint64_t target_bytes = known ? reserved_bytes + entry->in_flight_bytes : entry->covered_bytes;
    if (entry->covered_bytes > target_bytes) {
      excess_bytes = entry->covered_bytes - target_bytes;
    } else {
      missing_bytes = target_bytes - entry->covered_bytes;
    }
    entry->covered_bytes = target_bytes;
    break;
  }
  if (missing_bytes == 0) {
    mark(call, reservoir, -static_cast<int64_t>(excess_bytes));
    if (excess_bytes > grown_bytes) {
      give_back(call, excess_bytes);
    } else if (excess_bytes != 0) {
      cancel(call, excess_bytes);
    }
    return true;
  }
  if (try_take(call, missing_bytes)) {
    mark(call, reservoir, static_cast<int64_t>(missing_bytes));
    return true;
  }
  const gate::Locked locked(books);
  if (Entry* entry = find_locked(key)) entry->covered_bytes -= missing_bytes;
  return false;
}

void settle_reservoirs(const InFlight& call) {
  Walk walk(call.gpu());
  uint64_t key;
  while (walk.next(&key)) settle(call, key, 0);
}

uint64_t trim_reservoirs(const InFlight& call) {
  const SliceGpu& gpu = call.gpu();
  const auto held = [&] {
    return limiter::slot_use(*gpu.slice->state, gpu.index, gpu.slice->slot.slot).held_bytes;
  };
  const uint64_t before_bytes = held();
  const gate::RelaxedCapture relaxed;
  Walk walk(gpu);
  uint64_t key;
  while (walk.next(&key)) {
    if (is_graph_memory(key)) {
      real<fn::cuDeviceGraphMemTrim>(device_of_graph_memory(key));
    } else {
      real<fn::cuMemPoolTrimTo>(pool_of(key), size_t{0});
    }
    settle(call, key, 0);
  }
  const uint64_t after_bytes = held();
  return before_bytes > after_bytes ? before_bytes - after_bytes : 0;
}

EndingReservoir take_reservoir(uint64_t key) {
  const gate::Locked locked(books);
  uint64_t value;
  if (!entry_by_key.take(key, &value)) return {};
  auto* entry = reinterpret_cast<Entry*>(value);
  entry->key = 0;
  return {key, entry->reservoir, entry->gpu, entry->covered_bytes};
}

void put_reservoir_back(const EndingReservoir& ending) {
  if (ending.key == 0) return;
  const gate::Locked locked(books);
  // Its entry was there a moment ago; if another took it and there is no page for one more, the bytes stay
  // charged until the process ends.
  insert_locked({ending.key, ending.reservoir, ending.gpu, ending.covered_bytes, 0, 0});
}

void reservoir_is_gone(const InFlight& call, const EndingReservoir& ending) {
  if (!ending.gpu) return;
  mark(call, ending.reservoir, -static_cast<int64_t>(ending.covered_bytes));
  give_back(call, ending.covered_bytes);
}

void note_returned_to_reservoir() {
  if (any_returned.load(std::memory_order_relaxed) || any_returned.exchange(true)) [[likely]]
    return;
  for (int i = 0; i < session().slice_count; i++) {
    const AttachedSlice& slice = session().slices[i];
    for (int gpu = 0; gpu < slice.gpu_count; gpu++) limiter::note_freed(*slice.state, gpu, slice.slot);
  }
}

void forget_reservoirs() {
  any_returned.store(false, std::memory_order_relaxed);
  books.reset();
  entry_by_key.forget();
  // The parent's pages are ours too: their entries are free again.
  for (Page* page = pages; page != nullptr; page = page->next) {
    for (Entry& entry : page->entries) entry.key = 0;
  }
}

}  // namespace hook
