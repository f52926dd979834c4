// SPDX-License-Identifier: Apache-2.0
//
// Pacing without a broker: a leaky bucket that all processes of a slice share. The bucket is one word, the
// time before which no further kernel may start.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace limiter {

// A word further ahead than this is not believed: it was not written by pacing, or by a clock that is gone.
constexpr uint64_t kPaceHorizonNs = 10'000'000'000;

// What is late by no more is made up for: a launch that was woken late, or had to wait until the GPU was
// through with others. It is also the most that is saved up.
constexpr uint64_t kPaceLateNs = 10'000'000;

// Books a kernel of `estimate_ns` at `percent` of the GPU and returns when it may start (at most
// kPaceHorizonNs from now; a time that is past: at once). The bucket starts empty: there is no burst to begin
// with.
inline uint64_t pace(std::atomic<uint64_t>& next_ns, uint64_t estimate_ns, uint32_t percent,
                     uint64_t now_ns) {
  if (percent < 1) percent = 1;
  if (percent > 100) percent = 100;
  if (estimate_ns > kPaceHorizonNs) estimate_ns = kPaceHorizonNs;
  uint64_t next = next_ns.load(std::memory_order_relaxed);
  uint64_t start;
  do {
    const bool believed = next != 0 && (next <= now_ns || next - now_ns <= kPaceHorizonNs);
    start = believed ? std::max(next, now_ns - std::min(now_ns, kPaceLateNs)) : now_ns;
  } while (
      !next_ns.compare_exchange_weak(next, start + estimate_ns * 100 / percent, std::memory_order_relaxed));
  return start;
}

}  // namespace limiter
