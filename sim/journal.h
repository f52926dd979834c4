// SPDX-License-Identifier: Apache-2.0
//
// Undo journal of one device's shared state. Whoever holds the device's lock may be killed between any two
// instructions; the next holder then calls roll_back() and finds the state of the last commit().
//
// Every change goes through set(): the old value is in the journal before the new one is in the field. One
// thread writes at a time (the lock), and x86 makes a thread's stores visible in their order, so it takes
// only the compiler's ordering to be safe against SIGKILL.
#pragma once

#include <atomic>
#include <cassert>
#include <cstring>
#include <type_traits>

#include "sim/layout.h"

namespace sim {

class Journal {
 public:
  Journal(NodeFile& file, Device& device) : base_(reinterpret_cast<char*>(&file)), device_(device) {}

  template <typename T>
  void set(T& field, std::type_identity_t<T> value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
    assert(device_.journal_count < kJournalEntries);
    JournalEntry& entry = device_.journal[device_.journal_count];
    const uint64_t offset = reinterpret_cast<char*>(&field) - base_;
    entry.offset_and_size = static_cast<uint64_t>(sizeof(T)) << 56 | offset;
    std::memcpy(&entry.old_value, &field, sizeof(T));
    std::atomic_signal_fence(std::memory_order_seq_cst);
    device_.journal_count = device_.journal_count + 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    field = value;
  }

  template <typename T>
  void add(T& field, std::type_identity_t<T> value) {
    set(field, field + value);
  }

  // What is done so far stays done. Also orders plain stores before it against those after it.
  void commit() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    device_.journal_count = 0;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  // Whether the journal should be committed at the next consistent point, since no more than a hundred or so
  // changes still fit.
  bool nearly_full() const { return device_.journal_count > kJournalEntries - 256; }

  // May itself be killed and repeated.
  void roll_back() {
    while (device_.journal_count > 0) {
      const JournalEntry& entry = device_.journal[device_.journal_count - 1];
      const uint64_t offset = entry.offset_and_size & ((1ull << 56) - 1);
      std::memcpy(base_ + offset, &entry.old_value, entry.offset_and_size >> 56);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      device_.journal_count = device_.journal_count - 1;
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  }

 private:
  char* base_;
  Device& device_;
};

}  // namespace sim
