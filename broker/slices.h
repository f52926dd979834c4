// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "broker/admission.h"
#include "broker/api/cuslice.pb.h"
#include "broker/arbitration.h"
#include "broker/attach.h"
#include "broker/backstop.h"
#include "broker/event_loop.h"
#include "broker/members.h"
#include "broker/nvml.h"
#include "broker/reconcile.h"
#include "broker/records.h"
#include "broker/run_directory.h"

namespace broker {

namespace v1 = cuslice::broker::v1;

// The slices of the node: admits, makes, changes and removes them, and takes over what an earlier broker
// left.
//
// A slice on disk is its directory and its record. The record is written first and removed last, so a slice
// that is found without one was not made by a broker. Slices outlive this object. Owned and called by the
// loop's thread.
class Slices {
 public:
  Slices(EventLoop& loop, const RunDirectory& run, const Nvml& nvml, const Arbitration::Settings& settings);
  ~Slices();

  // Before anything else is called.
  void take_over();

  Status prepare(const v1::PrepareSliceRequest& request, v1::Slice* slice);
  Status release(const std::string& id, v1::ReleaseSliceResponse* response);
  Status update(const v1::UpdateSliceRequest& request, v1::Slice* slice);
  void list(v1::ListSlicesResponse* response);
  Status explain_time(const std::string& id, v1::ExplainTimeResponse* response);
  void describe_node(v1::Node* node);

  // Since when there has been no slice; 0: there are some.
  uint64_t empty_since_ns() const { return empty_since_ns_; }
  // Called each time that the last slice has gone.
  void when_emptied(std::function<void()> emptied) { emptied_ = std::move(emptied); }

 private:
  struct Slice;

  Status open(const std::string& id);
  Status start(std::unique_ptr<Slice> slice);
  Status start_listening(Slice& slice);
  void watch_owner(Slice& slice);
  void drain(Slice& slice);
  void remove(Slice& slice);
  void quarantine(Slice& slice, const char* reason);
  std::vector<SliceMarks> marks() const;
  // The bypasses of a slice are others now, or the policy is.
  void act_on_bypasses(Slice& slice);

  Terms read_terms(const shm::Limits& limits, std::vector<int>* node_gpus) const;
  limiter::ArbiterTerms arbiter_terms(const Terms& terms) const;
  Admission admission(const Slice* except) const;
  Slice* find(const std::string& id);
  Slice* find(limiter::SliceKey key);
  void describe(const Slice& slice, v1::Slice* description) const;

  EventLoop& loop_;
  const RunDirectory& run_;
  const SliceRecords records_;
  const Nvml& nvml_;
  Backstop backstop_;
  Reconciler reconciler_;
  std::map<std::string, std::unique_ptr<Slice>> slices_;  // by id
  limiter::SliceKey next_key_ = 1;
  uint64_t empty_since_ns_;
  std::function<void()> emptied_ = [] {};
  Arbitration arbitration_;  // ends first: its threads look at the slices' files
};

}  // namespace broker
