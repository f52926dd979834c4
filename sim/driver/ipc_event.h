// SPDX-License-Identifier: Apache-2.0
//
// cuIpc*Event*: events that several processes record and wait for. What they share is the event's last
// records, in a piece of the maker's device memory file: where each is in the channels of whoever recorded
// it.
#pragma once

#include <memory>

#include "sim/driver/stream.h"

namespace sim {

struct EventRecords;

class SharedEvent {
 public:
  // Of a new event. nullptr: out of address space.
  static std::shared_ptr<SharedEvent> make();
  static CUresult open(const CUipcEventHandle& handle, std::shared_ptr<SharedEvent>* event);
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  CUresult export_to(CUipcEventHandle* handle) const;

  // The last record, which may be another process'. nullptr: never recorded. `own`: what renew() made last
  // here.
  static MomentPtr last(const std::shared_ptr<SharedEvent>& event, const MomentPtr& own);
  // A new record in that context. The caller's Record places it.
  static MomentPtr renew(const std::shared_ptr<SharedEvent>& event, CUctx_st* context);

 private:
  friend class OwnRecord;
  friend class OtherRecord;

  SharedEvent(EventRecords* records, bool ours) : records_(records), ours_(ours) {}

  EventRecords* const records_;
  const bool ours_;  // the memory is this process' own, not a mapping of another's
};

}  // namespace sim
