// SPDX-License-Identifier: Apache-2.0
//
// When the GPU finished what, by the GPU's own clock: the host may look late and the times are right all the
// same.
#pragma once

#include "support.h"

namespace samples {

// Times of pieces of work in one stream, as CLOCK_MONOTONIC has them, so that those of several programs can
// be compared. The two clocks are matched to the wake-up of a thread: within some tens of microseconds.
class Timeline {
 public:
  explicit Timeline(cudaStream_t stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) CHECK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync));
    CHECK(cudaEventCreateWithFlags(&base_, cudaEventBlockingSync));
    match_clocks();
  }
  ~Timeline() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaEventDestroy(base_);
  }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // To be called after each launch. Pieces are at least kPieceNs of work, or a run of short kernels would be
  // mostly events.
  void queued(uint64_t work_ns) {
    pending_ns_ += work_ns;
    if (pending_ns_ < kPieceNs) return;
    if (queued_ - read_ == kEvents) read_oldest();
    CHECK(cudaEventRecord(events_[queued_ % kEvents], stream_));
    work_ns_.push_back(pending_ns_);
    pending_ns_ = 0;
    ++queued_;
  }

  void add_to(Report* report) {
    while (read_ < queued_) read_oldest();
    report->add("piece_end_ns", end_ns_);
    report->add("piece_work_ns", work_ns_);
  }

 private:
  static constexpr uint64_t kPieceNs = 500'000;
  static constexpr size_t kEvents = 1024;

  // The host sees each event late, never early: the least of a few differences is the best.
  void match_clocks() {
    CHECK(cudaEventRecord(base_, stream_));
    for (int i = 0; i < 8; ++i) {
      CHECK(cudaEventRecord(events_[0], stream_));
      CHECK(cudaEventSynchronize(events_[0]));
      base_ns_ = std::min(base_ns_, now_ns() - since_base_ns(events_[0]));
    }
  }

  uint64_t since_base_ns(cudaEvent_t event) const {
    float elapsed_ms = 0;
    CHECK(cudaEventElapsedTime(&elapsed_ms, base_, event));
    return static_cast<uint64_t>(static_cast<double>(elapsed_ms) * 1e6);
  }

  void read_oldest() {
    cudaEvent_t event = events_[read_++ % kEvents];
    CHECK(cudaEventSynchronize(event));
    end_ns_.push_back(base_ns_ + since_base_ns(event));
  }

  cudaStream_t stream_;
  cudaEvent_t base_, events_[kEvents];
  uint64_t base_ns_ = UINT64_MAX;
  uint64_t pending_ns_ = 0;
  size_t queued_ = 0, read_ = 0;
  std::vector<uint64_t> end_ns_, work_ns_;
};

}  // namespace samples
