// SPDX-License-Identifier: Apache-2.0
//
// Events: a name for a point in a stream, or in a capture.
#pragma once

#include "sim/driver/stream.h"

struct CUevent_st {
  static constexpr uint32_t kMagic = 0x65767431;
  uint32_t magic = kMagic;
  CUctx_st* const context;
  const unsigned flags;

  std::mutex mutex;                       // guards what follows
  sim::MomentPtr moment;                  // null: never recorded, which counts as done
  std::shared_ptr<sim::Capture> capture;  // recorded in a stream that was capturing, at this frontier
  std::vector<CUgraphNode> frontier;

  CUevent_st(CUctx_st* context, unsigned flags) : context(context), flags(flags) {}
  bool timed() const { return (flags & CU_EVENT_DISABLE_TIMING) == 0; }
};

namespace sim {

CUresult record_event(CUevent event, CUstream stream, unsigned flags);
// The event's point; null if it was never recorded.
MomentPtr moment_of(CUevent event);
// Gives the event a new point, which the caller must have recorded.
MomentPtr renew_moment(CUevent event);

}  // namespace sim
