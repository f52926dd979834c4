// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sim {

// Busy time of the last second or so, in buckets of 10 ms. A bucket holds its number (time / 10 ms) above,
// and the busy nanoseconds within it below, in one word, so that a stale bucket is recognised and one store
// updates both.
constexpr int kHistoryBuckets = 128;
constexpr uint64_t kHistoryBucketNs = 10'000'000;
constexpr int kHistoryBusyBits = 24;
static_assert(kHistoryBucketNs < (1u << kHistoryBusyBits));

// Not journaled: a bucket that a killed writer had filled already is filled again, and no bucket takes more
// than its width.
struct BusyHistory {
  uint64_t buckets[kHistoryBuckets];
};

// Marks the time between as busy.
void add_busy(BusyHistory* history, uint64_t from_ns, uint64_t to_ns);

// The busy part, in percent, of the window_ns before now_ns.
uint32_t busy_percent(const BusyHistory& history, uint64_t now_ns, uint64_t window_ns);

}  // namespace sim
