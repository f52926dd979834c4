// SPDX-License-Identifier: Apache-2.0
#include "sim/busy_history.h"

#include <algorithm>
#include <cmath>

namespace sim {

void add_busy(BusyHistory* history, uint64_t from_ns, uint64_t to_ns) {
  uint64_t number = from_ns / kHistoryBucketNs;
  const uint64_t last = to_ns / kHistoryBucketNs;
  if (last >= kHistoryBuckets) number = std::max(number, last - kHistoryBuckets + 1);
  for (; number <= last; ++number) {
    const uint64_t begin_ns = std::max(from_ns, number * kHistoryBucketNs);
    const uint64_t end_ns = std::min(to_ns, (number + 1) * kHistoryBucketNs);
    if (end_ns <= begin_ns) continue;
    uint64_t& bucket = history->buckets[number % kHistoryBuckets];
    const uint64_t mask = (1u << kHistoryBusyBits) - 1;
    const uint64_t had_ns = bucket >> kHistoryBusyBits == number ? bucket & mask : 0;
    bucket = number << kHistoryBusyBits | std::min(had_ns + end_ns - begin_ns, kHistoryBucketNs);
  }
}

uint32_t busy_percent(const BusyHistory& history, uint64_t now_ns, uint64_t window_ns) {
  window_ns = std::min(window_ns, (kHistoryBuckets - 1) * kHistoryBucketNs);
  if (window_ns == 0) return 0;
  const uint64_t from_ns = now_ns > window_ns ? now_ns - window_ns : 0;
  double busy_ns = 0;
  for (uint64_t number = from_ns / kHistoryBucketNs; number <= now_ns / kHistoryBucketNs; ++number) {
    const uint64_t bucket = history.buckets[number % kHistoryBuckets];
    if (bucket >> kHistoryBusyBits != number) continue;
    const double bucket_busy_ns = bucket & ((1u << kHistoryBusyBits) - 1);
    // Of the bucket that the window begins in, its part.
    const uint64_t begin_ns = number * kHistoryBucketNs;
    const double part =
        begin_ns < from_ns ? 1.0 - static_cast<double>(from_ns - begin_ns) / kHistoryBucketNs : 1.0;
    busy_ns += bucket_busy_ns * part;
  }
  return static_cast<uint32_t>(std::min(100L, std::lround(busy_ns * 100 / window_ns)));
}

}  // namespace sim
