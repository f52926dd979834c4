// SPDX-License-Identifier: Apache-2.0
//
// What a random tenant says about itself, in memory that it shares with who started it: so that it can be
// killed at any instruction and what it was doing is known all the same.
#pragma once

#include <atomic>
#include <cstdint>

namespace stress {

enum class Phase : uint32_t {
  kLoading,   // before its first CUDA call
  kStarting,  // in cuInit, where it attaches, or in making its context
  kRunning,
  kPaused,  // all that it launched is done, and it does nothing more
};

struct Report {
  std::atomic<Phase> phase;
  std::atomic<uint32_t> in_call;  // 1 while it is in a call that takes or frees memory
  std::atomic<uint64_t> operations;
  std::atomic<uint64_t> refusals;
};

}  // namespace stress
