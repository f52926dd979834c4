// SPDX-License-Identifier: Apache-2.0
//
// What this process knows about an address or a handle: 64-bit key -> 64-bit value, for its live allocations.
//
// Lock-free: any thread, any operation, at the same time; only one thread may insert a given key while it is
// absent. No heap: tables are anonymous mappings, each twice the one before, never given back. A key
// lies within kWindow entries of its home in one of them; an insert that finds no room there goes on to the
// next table, so no operation looks at more than kWindow entries a table, however many allocations live. 16
// bytes an entry.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace limiter {

class AddressTable {
 public:
  constexpr AddressTable() = default;
  AddressTable(const AddressTable&) = delete;
  AddressTable& operator=(const AddressTable&) = delete;

  // Preconditions: key > 1, and absent. false: no memory for a further table.
  bool insert(uint64_t key, uint64_t value);
  bool find(uint64_t key, uint64_t* value) const;  // any key may be asked for
  // Removes the key and returns its value: of several threads that try, one succeeds.
  bool take(uint64_t key, uint64_t* value);

  // Takes every key whose value `matches`, and calls visit(value) for each. A key inserted meanwhile may be
  // missed.
  template <typename Matches, typename Visit>
  void take_all(Matches matches, Visit visit);

  // Empties it. Preconditions: no other thread uses it (a forked child's first call).
  void forget();

  // Of all tables, for judging what an allocation costs.
  size_t mapped_bytes() const;

 private:
  struct Entry {
    std::atomic<uint64_t> key;  // 0: free; kBusy: claimed by an insert or a take
    std::atomic<uint64_t> value;
  };
  static_assert(sizeof(Entry) == 16);

  static constexpr uint64_t kBusy = 1;
  static constexpr size_t kWindow = 32;
  static constexpr int kTables = 26;  // the last one alone has room for 2^35 keys
  static constexpr int kFirstTableBits = 10;

  static size_t entries(int table) { return size_t{1} << (kFirstTableBits + table); }
  static size_t home(uint64_t key, int table);
  bool insert_into(int table, uint64_t key, uint64_t value);
  bool make_table(int table);

  std::atomic<Entry*> tables_[kTables] = {};
  std::atomic<int> used_{0};  // tables made so far
};

template <typename Matches, typename Visit>
void AddressTable::take_all(Matches matches, Visit visit) {
  for (int table = used_.load(std::memory_order_acquire) - 1; table >= 0; table--) {
    Entry* const base = tables_[table].load(std::memory_order_acquire);
    for (size_t i = 0; i < entries(table); i++) {
      Entry& entry = base[i];
      uint64_t key = entry.key.load(std::memory_order_acquire);
      if (key <= kBusy || !matches(entry.value.load(std::memory_order_relaxed))) continue;
      if (!entry.key.compare_exchange_strong(key, kBusy, std::memory_order_acquire)) continue;
      const uint64_t value = entry.value.load(std::memory_order_relaxed);
      const bool still_matches = matches(value);  // the key may have left and come back with another value
      entry.key.store(still_matches ? 0 : key, std::memory_order_release);
      if (still_matches) visit(value);
    }
  }
}

}  // namespace limiter
