// SPDX-License-Identifier: Apache-2.0
#include "limiter/ledger.h"

#include <emmintrin.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <iterator>

namespace limiter {
namespace {

using shm::Shared;

constexpr uint64_t tagged(uint32_t generation, uint64_t bytes) {
  return static_cast<uint64_t>(generation & 0xffff) << shm::kGenerationShift | bytes;
}
constexpr uint32_t generation_of(uint64_t word) {
  return static_cast<uint32_t>(word >> shm::kGenerationShift);
}
constexpr uint64_t bytes_of(uint64_t word) { return word & shm::kLedgerBytesMask; }

uint64_t now_ns() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Adds delta to a tagged word, saturating at 0 and at the largest count. false: the word is another
// generation's.
bool add(Shared<uint64_t>& word, uint32_t generation, int64_t delta_bytes) {
  uint64_t old = word.load();
  for (;;) {
    if (generation_of(old) != (generation & 0xffff)) return false;
    const uint64_t bytes = bytes_of(old);
    uint64_t changed;
    if (delta_bytes < 0) {
      const uint64_t less = static_cast<uint64_t>(-delta_bytes);
      changed = bytes > less ? bytes - less : 0;
    } else {
      const uint64_t more = static_cast<uint64_t>(delta_bytes);
      changed = shm::kLedgerBytesMask - bytes > more ? bytes + more : shm::kLedgerBytesMask;
    }
    if (word.compare_exchange_weak(old, tagged(generation, changed))) return true;
  }
}

// Sets a tagged word to `bytes`. false: another generation's.
bool set(Shared<uint64_t>& word, uint32_t generation, uint64_t bytes) {
  uint64_t old = word.load();
  do {
    if (generation_of(old) != (generation & 0xffff)) return false;
  } while (!word.compare_exchange_weak(old, tagged(generation, bytes)));
  return true;
}

// Moves a tagged word from generation g to g+1 with 0 bytes; does nothing if that has been done.
void retire(Shared<uint64_t>& word, uint32_t generation) {
  uint64_t old = word.load();
  while (generation_of(old) == (generation & 0xffff)) {
    if (word.compare_exchange_weak(old, tagged(generation + 1, 0))) return;
  }
}

// Adds delta to the counts in a line's `calls`, modulo 2^48.
void count_call(shm::State& state, int gpu, SlotRef self, uint64_t delta) {
  Shared<uint64_t>& word = state.ledger[gpu][self.slot].calls;
  uint64_t old = word.load();
  do {
    if (generation_of(old) != (self.generation & 0xffff)) return;
  } while (!word.compare_exchange_weak(old, tagged(self.generation, bytes_of(old + delta))));
}

uint32_t slots_in_use(const shm::State& state) {
  const uint32_t high = state.header.slots_high.load();
  return high < shm::kMaxSlots ? high : shm::kMaxSlots;
}

constexpr uint32_t kBlockLines = 64;

uint64_t quota_of(const shm::Limits& limits, int gpu) {
  // A quarantined slice gets nothing more, whatever its quota.
  if (limits.header.flags.load(std::memory_order_relaxed) & shm::kQuarantined) return 0;
  return limits.gpus[gpu].quota_bytes.load();
}

// The floor before the overhead: the broker publishes the overhead first and clears the floor then, so a
// reader in this order sees at least one of them.
uint64_t driver_charge(const shm::Limits& limits, const shm::State& state, int gpu, uint32_t slot) {
  const uint64_t floor = bytes_of(state.ledger[gpu][slot].context_floor.load());
  const uint64_t overhead = limits.overhead_bytes[gpu][slot].load() & shm::kLedgerBytesMask;
  return overhead > floor ? overhead : floor;
}

// What a process is charged on a GPU.
struct Charge {
  uint64_t held;
  uint64_t driver;
  uint64_t all() const { return held + driver; }
};

// What the broker forgives is looked at after all else: if no call has begun until then, the rest is still
// what it was seen of.
Charge charge_of(const shm::Limits& limits, const shm::State& state, int gpu, uint32_t slot) {
  const shm::SlotLedger& line = state.ledger[gpu][slot];
  Charge charge = {bytes_of(line.held.load()), driver_charge(limits, state, gpu, slot)};
  const uint64_t word = line.excess.load();
  uint64_t excess = bytes_of(word);
  if (excess == 0) [[likely]]
    return charge;
  const uint64_t calls = line.calls.load();
  if ((calls & shm::kCallsInFlightMask) != 0 || shm::calls_tag(calls) != word >> 48) return charge;
  const uint64_t of_held = excess < charge.held ? excess : charge.held;
  charge.held -= of_held;
  excess -= of_held;
  charge.driver -= excess < charge.driver ? excess : charge.driver;
  return charge;
}

// After something was given back, before it is no longer held: what was forgiven may be just that.
void clear_excess(shm::SlotLedger& line) {
  if (line.excess.load() != 0) line.excess.store(0);
}

struct Sums {
  uint64_t everything;  // wanted, held, the driver's, orphaned
  uint64_t confirmed;   // the same without what is only wanted
  bool lower_slot_wants;
};

// Two words of each line of a block, none of which has more, add up to less than 2^48.
constexpr uint64_t kPlausibleBytes = shm::kLedgerBytesMask / (2 * kBlockLines);

// What sum_of_quiet() loads two words at a time.
static_assert(alignof(shm::SlotLedger) == 8 && sizeof(shm::SlotLedger) == 64);
static_assert(offsetof(shm::State, ledger) % 16 == 0 && offsetof(shm::Limits, overhead_bytes) % 16 == 0);
static_assert(offsetof(shm::SlotLedger, want) == 0 && offsetof(shm::SlotLedger, held) == 8);
static_assert(offsetof(shm::SlotLedger, context_floor) == 24 && offsetof(shm::SlotLedger, excess) == 56);

// One load each, which the compiler does not repeat where the value is used twice.
struct alignas(16) Pair {
  Shared<uint64_t> words[2];
};
__m128i load_pair(const Shared<uint64_t>* words) {
  __m128i pair;
  asm("movdqa %1, %0" : "=x"(pair) : "m"(*reinterpret_cast<const Pair*>(words)));
  return pair;
}
void or_pair(__m128i& into, const Shared<uint64_t>* words) {
  asm("por %1, %0" : "+x"(into) : "m"(*reinterpret_cast<const Pair*>(words)));
}
uint64_t lower(__m128i pair) { return static_cast<uint64_t>(_mm_cvtsi128_si64(pair)); }
uint64_t upper(__m128i pair) { return lower(_mm_unpackhi_epi64(pair, pair)); }

// What lines [first, last) are charged with, if none of them has a request, a floor or an excess, or more
// than any GPU has: mostly so, and told by one test at the end. Generations lie above the bytes and fall out
// of the sum. `first` is even.
//
// Two words a load: processors with AVX, which is any beside a GPU, load 16 aligned bytes at once, so `held`
// is never older than `want`; and they load in the order of the program, which the fence has the compiler
// keep. Budget: 11 instructions a line, no branch; at 2,000 lines it is the cache that is waited for.
bool sum_of_quiet(const shm::SlotLedger* lines, const Shared<uint64_t>* overheads, uint32_t first,
                  uint32_t last, uint64_t* charged) {
  __m128i requests = _mm_setzero_si128();  // of all lines, want | held
  __m128i others = _mm_setzero_si128();    // managed | pooled, which may be anything; floor | excess
  __m128i drivers = _mm_setzero_si128();   // overheads of even slots | of odd ones
  __m128i held_sums = _mm_setzero_si128();
  __m128i driver_sums = _mm_setzero_si128();
  const auto add_line = [&](const shm::SlotLedger& line) {
    const __m128i want_and_held = load_pair(&line.want);
    requests = _mm_or_si128(requests, want_and_held);
    held_sums = _mm_add_epi64(held_sums, want_and_held);
    or_pair(others, &line.managed);
    or_pair(others, &line.pooled);
  };
  const shm::SlotLedger* line = lines + first;
  const Shared<uint64_t>* overhead = overheads + first;
  const shm::SlotLedger* const end = lines + last;
#pragma GCC unroll 2
  for (; end - line >= 2; line += 2, overhead += 2) {
    add_line(line[0]);
    add_line(line[1]);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const __m128i pair = load_pair(overhead);
    drivers = _mm_or_si128(drivers, pair);
    driver_sums = _mm_add_epi64(driver_sums, pair);
  }
  uint64_t large = lower(drivers) | upper(drivers);
  uint64_t sum = lower(driver_sums) + upper(driver_sums);
  if (line != end) {
    add_line(*line);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const uint64_t last_overhead = overhead->load();
    large |= last_overhead;
    sum += last_overhead;
  }
  large |= upper(requests);
  sum += upper(held_sums);
  *charged += bytes_of(sum);
  return bytes_of(lower(requests) | upper(others)) == 0 && bytes_of(large) <= kPlausibleBytes;
}

// One pass over the lines; all loads are sequentially consistent, want before held and the floor before the
// overhead in each.
Sums scan(const shm::Limits& limits, const shm::State& state, int gpu, uint32_t self) {
  const uint32_t slots = slots_in_use(state);
  const shm::SlotLedger* const lines = state.ledger[gpu];
  const Shared<uint64_t>* const overheads = limits.overhead_bytes[gpu];
  Sums sums = {};
  sums.confirmed = limits.gpus[gpu].orphaned_bytes.load() & shm::kLedgerBytesMask;
  uint64_t wanted = 0;
  const auto add_line = [&](uint32_t slot) {
    const uint64_t want = bytes_of(lines[slot].want.load());
    sums.confirmed += charge_of(limits, state, gpu, slot).all();
    wanted += want;
    if (want != 0 && slot < self) sums.lower_slot_wants = true;
  };
  // In blocks: one line that is not quiet does not slow down the others.
  const auto add_lines = [&](uint32_t first, uint32_t end) {
    for (; first < end; first += kBlockLines) {
      const uint32_t last = end - first < kBlockLines ? end : first + kBlockLines;
      uint64_t charged = 0;
      if (sum_of_quiet(lines, overheads, first, last, &charged)) [[likely]] {
        sums.confirmed += charged;
        continue;
      }
      for (uint32_t slot = first; slot < last; slot++) add_line(slot);
    }
  };
  const uint32_t before = (self < slots ? self : slots) & ~1u;
  add_lines(0, before);
  if (self < slots) {
    const uint32_t after = before + 2 < slots ? before + 2 : slots;
    for (uint32_t slot = before; slot < after; slot++) add_line(slot);
    add_lines(after, slots);
  } else {
    add_lines(before, slots);
  }
  sums.everything = sums.confirmed + wanted;
  return sums;
}

// Waits for peers' requests to be decided: short at first (they take nanoseconds), then longer (one was
// killed).
void pause(uint64_t waited_ns) {
  if (waited_ns < 1'000'000) {
    sched_yield();
    return;
  }
  // Processes that collide must not keep in step: the stack's address differs between threads.
  const uint64_t jitter_ns = reinterpret_cast<uintptr_t>(&waited_ns) >> 6 & 0xffff;
  struct timespec nap = {0, static_cast<long>(50'000 + jitter_ns)};
  nanosleep(&nap, nullptr);
}

// The protocol of the header; `take` is what turns a request into a holding.
template <typename Take>
Reservation reserve_by(const shm::Limits& limits, shm::State& state, int gpu, SlotRef self, uint64_t bytes,
                       Take take) {
  shm::SlotLedger& mine = state.ledger[gpu][self.slot];
  if (bytes > shm::kLedgerBytesMask) return Reservation::kRefused;
  const int64_t delta = static_cast<int64_t>(bytes);
  constexpr uint64_t kKeepNs = 1'000'000;  // a request that others give way to stays announced this long
  uint64_t started_ns = 0;
  for (;;) {
    if (!add(mine.want, self.generation, delta)) return Reservation::kStale;
    uint64_t announced_ns = 0;
    for (;;) {
      const Sums sums = scan(limits, state, gpu, self.slot);
      if (sums.everything <= quota_of(limits, gpu)) {
        const bool taken = take(mine);
        add(mine.want, self.generation, -delta);
        return taken ? Reservation::kGranted : Reservation::kStale;
      }
      if (sums.lower_slot_wants || sums.confirmed + bytes > quota_of(limits, gpu)) break;
      // Fits but for requests of higher slots, or of other threads of this process: those give way.
      const uint64_t now = now_ns();
      if (announced_ns == 0) announced_ns = now;
      if (now - announced_ns > kKeepNs) break;
      sched_yield();
    }
    add(mine.want, self.generation, -delta);
    // Only what is held decides a refusal, read anew now that our own request is withdrawn.
    if (scan(limits, state, gpu, self.slot).confirmed + bytes > quota_of(limits, gpu))
      return Reservation::kRefused;
    state.counters[shm::kReservationRetries].fetch_add(1, std::memory_order_relaxed);
    const uint64_t now = now_ns();
    if (started_ns == 0) started_ns = now;
    if (now - started_ns > kReserveDeadlineNs) return Reservation::kRefused;
    pause(now - started_ns);
  }
}

}  // namespace

void begin_call(shm::State& state, int gpu, SlotRef self) { count_call(state, gpu, self, 1); }

void end_call(shm::State& state, int gpu, SlotRef self) {
  count_call(state, gpu, self, (uint64_t{1} << shm::kCallsEndedShift) - 1);
}

Reservation reserve(const shm::Limits& limits, shm::State& state, int gpu, SlotRef self, uint64_t bytes) {
  return reserve_by(limits, state, gpu, self, bytes, [&](shm::SlotLedger& mine) {
    return add(mine.held, self.generation, static_cast<int64_t>(bytes));
  });
}

void release(shm::State& state, int gpu, SlotRef self, uint64_t bytes) {
  state.ledger[gpu][self.slot].releases.fetch_add(1);
  cancel(state, gpu, self, bytes);
}

void cancel(shm::State& state, int gpu, SlotRef self, uint64_t bytes) {
  shm::SlotLedger& mine = state.ledger[gpu][self.slot];
  clear_excess(mine);
  add(mine.held, self.generation, -static_cast<int64_t>(bytes & shm::kLedgerBytesMask));
}

Reservation reserve_context(const shm::Limits& limits, shm::State& state, int gpu, SlotRef self) {
  if (driver_charge(limits, state, gpu, self.slot) != 0) return Reservation::kGranted;
  const uint64_t bytes = limits.gpus[gpu].context_bytes.load() & shm::kLedgerBytesMask;
  return reserve_by(limits, state, gpu, self, bytes,
                    [&](shm::SlotLedger& mine) { return set(mine.context_floor, self.generation, bytes); });
}

void give_context(shm::State& state, int gpu, SlotRef self) {
  shm::SlotLedger& mine = state.ledger[gpu][self.slot];
  clear_excess(mine);
  mine.releases.fetch_add(1);
  set(mine.context_floor, self.generation, 0);
}

Reservation reserve_overhead(const shm::Limits& limits, shm::State& state, int gpu, SlotRef self,
                             uint64_t bytes) {
  return reserve_by(limits, state, gpu, self, bytes, [&](shm::SlotLedger& mine) {
    uint64_t old = mine.context_floor.load();
    for (;;) {
      if (generation_of(old) != (self.generation & 0xffff)) return false;
      const uint64_t charged = driver_charge(limits, state, gpu, self.slot);
      const uint64_t floor =
          shm::kLedgerBytesMask - bytes > charged ? charged + bytes : shm::kLedgerBytesMask;
      if (mine.context_floor.compare_exchange_weak(old, tagged(self.generation, floor))) return true;
    }
  });
}

void give_overhead(shm::State& state, int gpu, SlotRef self, uint64_t bytes) {
  shm::SlotLedger& mine = state.ledger[gpu][self.slot];
  clear_excess(mine);
  mine.releases.fetch_add(1);
  add(mine.context_floor, self.generation, -static_cast<int64_t>(bytes & shm::kLedgerBytesMask));
}

void add_managed(shm::State& state, int gpu, SlotRef self, int64_t delta_bytes) {
  add(state.ledger[gpu][self.slot].managed, self.generation, delta_bytes);
}

void add_pooled(shm::State& state, int gpu, SlotRef self, int64_t delta_bytes) {
  add(state.ledger[gpu][self.slot].pooled, self.generation, delta_bytes);
}

void note_freed(shm::State& state, int gpu, SlotRef self) {
  state.ledger[gpu][self.slot].releases.fetch_add(1);
}

bool clear_context_floor(shm::State& state, int gpu, SlotRef slot, uint64_t measured_bytes) {
  uint64_t measured = tagged(slot.generation, measured_bytes & shm::kLedgerBytesMask);
  return state.ledger[gpu][slot.slot].context_floor.compare_exchange_strong(measured,
                                                                            tagged(slot.generation, 0));
}

SlotUse slot_use(const shm::State& state, int gpu, uint32_t slot) {
  const shm::SlotLedger& line = state.ledger[gpu][slot];
  SlotUse use;
  use.calls = line.calls.load();
  use.held_bytes = bytes_of(line.held.load());
  use.managed_bytes = bytes_of(line.managed.load());
  use.floor_bytes = bytes_of(line.context_floor.load());
  use.releases = line.releases.load();
  use.pooled_bytes = bytes_of(line.pooled.load());
  return use;
}

bool was_quiescent(const SlotUse& before, const SlotUse& after) {
  return before.calls == after.calls && (before.calls & shm::kCallsInFlightMask) == 0;
}

void forgive(shm::State& state, int gpu, uint32_t slot, const SlotUse& seen, uint64_t bytes) {
  bytes &= shm::kLedgerBytesMask;
  const uint64_t word = bytes == 0 ? 0 : shm::calls_tag(seen.calls) << 48 | bytes;
  Shared<uint64_t>& excess = state.ledger[gpu][slot].excess;
  if (excess.load() != word) excess.store(word);
}

Usage usage(const shm::Limits& limits, const shm::State& state, int gpu) {
  Usage sum = {};
  sum.quota_bytes = limits.gpus[gpu].quota_bytes.load();
  sum.orphaned_bytes = limits.gpus[gpu].orphaned_bytes.load() & shm::kLedgerBytesMask;
  const uint32_t slots = slots_in_use(state);
  for (uint32_t slot = 0; slot < slots; slot++) {
    const Charge charge = charge_of(limits, state, gpu, slot);
    sum.held_bytes += charge.held;
    sum.overhead_bytes += charge.driver;
  }
  return sum;
}

uint64_t slot_charge(const shm::Limits& limits, const shm::State& state, int gpu, uint32_t slot) {
  return charge_of(limits, state, gpu, slot).all();
}

namespace {

template <size_t bytes>
uint64_t name_part(const char (&name)[bytes], size_t from) {
  uint64_t part = 0;
  for (size_t i = from; i < bytes && i < from + shm::kNameBytesPerWord; i++) {
    part |= uint64_t{static_cast<uint8_t>(name[i])} << (8 * (i - from));
  }
  return part;
}

// Whether the slot is still its new owner's, now that it is written down: a reaper that came just before
// either sees that and puts the slot back, or frees it.
bool is_kept(const shm::Slot& slot, uint32_t generation) {
  const uint32_t reaping = shm::slot_owner(shm::kSlotReaping, generation);
  uint32_t owner = slot.owner.load();
  for (int naps = 0; owner == reaping && naps < 1000; naps++) {
    const struct timespec nap = {0, 100'000};
    nanosleep(&nap, nullptr);
    owner = slot.owner.load();
  }
  return owner == shm::slot_owner(shm::kSlotLive, generation);
}

}  // namespace

bool claim_slot(shm::State& state, uint32_t from, SlotRef* claimed) {
  for (uint32_t index = from; index < shm::kMaxSlots; index++) {
    shm::Slot& slot = state.slots[index];
    uint32_t owner = slot.owner.load();
    if (shm::slot_state(owner) != shm::kSlotFree) continue;
    const uint32_t generation = shm::slot_generation(owner);
    if (!slot.owner.compare_exchange_strong(owner, shm::slot_owner(shm::kSlotLive, generation))) continue;
    *claimed = {index, generation};
    return true;
  }
  return false;
}

bool settle_slot(shm::State& state, SlotRef claimed, const ProcessIdentity& self) {
  shm::Slot& slot = state.slots[claimed.slot];
  const uint32_t generation = claimed.generation;
  if (!set(slot.pid_namespace, generation, self.pid_namespace & shm::kGenerationValueMask) ||
      !set(slot.start_time, generation, self.start_time & shm::kGenerationValueMask))
    return false;
  for (size_t i = 0; i < std::size(slot.name); i++) {
    if (!set(slot.name[i], generation, name_part(self.name, i * shm::kNameBytesPerWord))) return false;
  }
  // Raised before our first request can be announced: who announces later scans us.
  uint32_t high = state.header.slots_high.load();
  while (high <= claimed.slot && !state.header.slots_high.compare_exchange_weak(high, claimed.slot + 1)) {
  }
  if (!set(slot.process, generation, self.pid) || !is_kept(slot, generation)) return false;

  // No generation guards these, so they wait until nobody reaps the slot before its owner has died.
  shm::Work& work = state.work[claimed.slot];
  work.waiting.store(0, std::memory_order_relaxed);
  work.outstanding.store(0, std::memory_order_relaxed);
  work.contexts.store(0, std::memory_order_relaxed);
  work.closing_turn.store(0, std::memory_order_relaxed);
  work.drained_ns.store(0, std::memory_order_relaxed);
  work.drain_expected_ns.store(0, std::memory_order_relaxed);
  work.occupied_ns.store(0, std::memory_order_relaxed);
  work.launches.store(0, std::memory_order_relaxed);
  work.active_ns.store(0, std::memory_order_relaxed);
  work.active_at_ns.store(0, std::memory_order_relaxed);
  return true;
}

bool take_slot(shm::State& state, const ProcessIdentity& self, SlotRef* taken) {
  for (uint32_t from = 0; claim_slot(state, from, taken); from = taken->slot + 1) {
    if (settle_slot(state, *taken, self)) return true;
    // Not ours any more; or its words are damaged, and it is given back.
    reap_unwritten_slot(state, taken->slot, taken->generation);
  }
  state.counters[shm::kSlotsFull].fetch_add(1, std::memory_order_relaxed);
  return false;
}

void reap_slot(shm::State& state, uint32_t index, uint32_t generation) {
  if (index >= shm::kMaxSlots) return;
  shm::Slot& slot = state.slots[index];
  uint32_t owner = shm::slot_owner(shm::kSlotLive, generation);
  const uint32_t reaping = shm::slot_owner(shm::kSlotReaping, generation);
  if (!slot.owner.compare_exchange_strong(owner, reaping) && owner != reaping) return;
  // Each word moves to the next generation by itself, so a second reaper, or one that comes after the slot
  // was taken again, changes nothing.
  for (int gpu = 0; gpu < shm::kMaxGpus; gpu++) {
    shm::SlotLedger& line = state.ledger[gpu][index];
    line.releases.store(0);
    retire(line.held, generation);
    retire(line.want, generation);
    retire(line.managed, generation);
    retire(line.context_floor, generation);
    retire(line.calls, generation);
    retire(line.pooled, generation);
    line.excess.store(0);
  }
  for (Shared<uint64_t>& part : slot.name) retire(part, generation);
  retire(slot.start_time, generation);
  retire(slot.pid_namespace, generation);
  retire(slot.process, generation);
  owner = reaping;
  slot.owner.compare_exchange_strong(owner, shm::slot_owner(shm::kSlotFree, generation + 1));
}

bool is_nearly_reaped(const shm::Slot& slot, uint32_t owner) {
  const uint32_t next = (shm::slot_generation(owner) + 1) & 0xffff;
  return shm::slot_state(owner) == shm::kSlotReaping && generation_of(slot.process.load()) == next;
}

bool reap_unwritten_slot(shm::State& state, uint32_t index, uint32_t generation) {
  if (index >= shm::kMaxSlots) return false;
  shm::Slot& slot = state.slots[index];
  const uint32_t live = shm::slot_owner(shm::kSlotLive, generation);
  uint32_t reaping = shm::slot_owner(shm::kSlotReaping, generation);
  uint32_t owner = live;
  if (!slot.owner.compare_exchange_strong(owner, reaping)) return false;
  if (shm::slot_pid(slot, live) != 0) {
    slot.owner.compare_exchange_strong(reaping, live);
    return false;
  }
  reap_slot(state, index, generation);
  return true;
}

}  // namespace limiter
