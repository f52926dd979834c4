// SPDX-License-Identifier: Apache-2.0
//
// Events: a name for a point in a stream, or in a capture.
#pragma once

#include "sim/driver/stream.h"

namespace sim {
class SharedEvent;
}

struct CUevent_st {
  static constexpr uint32_t kMagic = 0x65767431;
  uint32_t magic = kMagic;
  CUctx_st* const context;
  const unsigned flags;
  const std::shared_ptr<sim::SharedEvent> shared;  // null: not for other processes

  std::mutex mutex;                       // guards what follows
  sim::MomentPtr moment;                  // null: never recorded here, which counts as done
  std::shared_ptr<sim::Capture> capture;  // recorded in a stream that was capturing, at this frontier
  std::vector<CUgraphNode> frontier;

  CUevent_st(CUctx_st* context, unsigned flags, std::shared_ptr<sim::SharedEvent> shared)
      : context(context), flags(flags), shared(std::move(shared)) {}
  bool timed() const { return (flags & CU_EVENT_DISABLE_TIMING) == 0; }
};

namespace sim {

CUresult check_event(CUevent event);
CUresult record_event(CUevent event, CUstream stream, unsigned flags);
// The event's point; null if it was never recorded.
MomentPtr moment_of(CUevent event);
// Gives the event a new point, which the caller must have recorded.
MomentPtr renew_moment(CUevent event);

}  // namespace sim
