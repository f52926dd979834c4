// SPDX-License-Identifier: Apache-2.0
#include "limiter/address_table.h"

#include <sys/mman.h>

namespace limiter {

// Addresses differ in their middle bits most; the multiplication carries these into the top ones.
size_t AddressTable::home(uint64_t key, int table) {
  const uint64_t mixed = key * 0x9e3779b97f4a7c15;
  return (mixed ^ mixed >> 32) * 0x9e3779b97f4a7c15 >> (64 - kFirstTableBits - table);
}

bool AddressTable::insert_into(int table, uint64_t key, uint64_t value) {
  Entry* const base = tables_[table].load(std::memory_order_acquire);
  const size_t mask = entries(table) - 1;
  const size_t start = home(key, table);
  for (size_t i = 0; i < kWindow; i++) {
    Entry& entry = base[(start + i) & mask];
    uint64_t free = 0;
    if (entry.key.load(std::memory_order_relaxed) != 0) continue;
    if (!entry.key.compare_exchange_strong(free, kBusy, std::memory_order_acquire)) continue;
    entry.value.store(value, std::memory_order_relaxed);
    // release; pairs with the acquire in find() and take(): who sees the key sees its value.
    entry.key.store(key, std::memory_order_release);
    return true;
  }
  return false;
}

bool AddressTable::make_table(int table) {
  const size_t bytes = entries(table) * sizeof(Entry);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  Entry* none = nullptr;
  if (!tables_[table].compare_exchange_strong(none, static_cast<Entry*>(memory), std::memory_order_acq_rel)) {
    munmap(memory, bytes);  // another thread was first
  }
  int used = table;
  used_.compare_exchange_strong(used, table + 1, std::memory_order_acq_rel);
  return true;
}

// The newest table first: most of what lives, and most of the room, is there.
bool AddressTable::insert(uint64_t key, uint64_t value) {
  for (;;) {
    const int used = used_.load(std::memory_order_acquire);
    for (int table = used - 1; table >= 0; table--) {
      if (insert_into(table, key, value)) return true;
    }
    if (used == kTables || !make_table(used)) return false;
  }
}

bool AddressTable::find(uint64_t key, uint64_t* value) const {
  if (key <= kBusy) return false;  // never a key: it would match entries that are free or claimed
  for (int table = used_.load(std::memory_order_acquire) - 1; table >= 0; table--) {
    Entry* const base = tables_[table].load(std::memory_order_acquire);
    const size_t mask = entries(table) - 1;
    const size_t start = home(key, table);
    for (size_t i = 0; i < kWindow; i++) {
      const Entry& entry = base[(start + i) & mask];
      if (entry.key.load(std::memory_order_acquire) != key) continue;
      const uint64_t found = entry.value.load(std::memory_order_acquire);
      // A take and an insert between the two loads would have left another key's value, or none.
      if (entry.key.load(std::memory_order_relaxed) != key) continue;
      *value = found;
      return true;
    }
  }
  return false;
}

bool AddressTable::take(uint64_t key, uint64_t* value) {
  if (key <= kBusy) return false;
  for (int table = used_.load(std::memory_order_acquire) - 1; table >= 0; table--) {
    Entry* const base = tables_[table].load(std::memory_order_acquire);
    const size_t mask = entries(table) - 1;
    const size_t start = home(key, table);
    for (size_t i = 0; i < kWindow; i++) {
      Entry& entry = base[(start + i) & mask];
      uint64_t expected = key;
      if (entry.key.load(std::memory_order_relaxed) != key) continue;
      if (!entry.key.compare_exchange_strong(expected, kBusy, std::memory_order_acquire)) continue;
      *value = entry.value.load(std::memory_order_relaxed);
      // release; pairs with the acquire in insert_into(): the next owner writes the value after we have read
      // it.
      entry.key.store(0, std::memory_order_release);
      return true;
    }
  }
  return false;
}

void AddressTable::forget() {
  for (int table = used_.load(std::memory_order_relaxed) - 1; table >= 0; table--) {
    munmap(tables_[table].exchange(nullptr, std::memory_order_relaxed), entries(table) * sizeof(Entry));
  }
  used_.store(0, std::memory_order_relaxed);
}

size_t AddressTable::mapped_bytes() const {
  size_t bytes = 0;
  for (int table = used_.load(std::memory_order_acquire) - 1; table >= 0; table--) {
    bytes += entries(table) * sizeof(Entry);
  }
  return bytes;
}

}  // namespace limiter
