// SPDX-License-Identifier: Apache-2.0
//
// The lines that `cuslicectl top` shows of slices.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "broker/api/cuslice.pb.h"
#include "ctl/client.h"
#include "ctl/commands.h"
#include "ctl/snapshot.h"

namespace ctl {

// What is looked at per interval.
struct Sample {
  std::map<std::string, SliceView> slices;
  std::map<std::string, uint64_t> handover_ns;  // so far, by slice; empty without a broker
  v1::Node node;
  Status broker;  // whether it answers
};

// Time in which the slice waited and nobody was on its GPUs. 0: none, or not known.
uint64_t handover_ns_between(const Sample& before, const Sample& now, const std::string& id);

// The order that comes after this one.
TopOrder next(TopOrder order);

// Head and lines, `width` columns wide at least 80; what a wider terminal gives goes to the name.
std::vector<std::string> slice_table(const Sample& before, const Sample& now, const TopOptions& options,
                                     size_t width);

// "3.1/10.0GiB": both in the quota's unit.
std::string used_of_quota(uint64_t used, uint64_t quota);

}  // namespace ctl
