// SPDX-License-Identifier: Apache-2.0
//
// A lock of one word, free when zero: usable in zeroed memory, and freed in a forked child by zeroing it.
// Held for tens of instructions only, never across a call into the driver or a wait, unless the lock says
// why.
#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/syscalls.h"

namespace gate {

class FutexLock {
 public:
  void lock() {
    uint32_t seen = kFree;
    if (word_.compare_exchange_strong(seen, kHeld, std::memory_order_acquire)) [[likely]]
      return;
    while (word_.exchange(kContended, std::memory_order_acquire) != kFree) {
      hook::futex_wait(&word_, kContended, kLookAgainNs, false);
    }
  }
  void unlock() {
    if (word_.exchange(kFree, std::memory_order_release) == kContended) hook::futex_wake(&word_, 1, false);
  }
  // In a forked child: whoever held it is not here.
  void reset() { word_.store(kFree, std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1, kContended = 2;
  static constexpr uint64_t kLookAgainNs = 100'000'000;
  std::atomic<uint32_t> word_{kFree};
};

class Locked {
 public:
  explicit Locked(FutexLock& lock) : lock_(lock) { lock_.lock(); }
  ~Locked() { lock_.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  FutexLock& lock_;
};

}  // namespace gate
