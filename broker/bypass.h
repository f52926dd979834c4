// SPDX-License-Identifier: Apache-2.0
//
// What is written down about the processes that bypass a slice: in its `limits`, and in the API.
#pragma once

#include <string>
#include <vector>

#include "broker/api/cuslice.pb.h"
#include "broker/backstop.h"
#include "shm/layout.h"

namespace broker {

namespace v1 = cuslice::broker::v1;

// kBypassReport for what is not specified.
shm::BypassPolicy bypass_policy(v1::BypassPolicy policy);
v1::BypassPolicy bypass_policy(shm::BypassPolicy policy);
const char* policy_name(shm::BypassPolicy policy);

// Charges the slice for the processes of it that never attached, in place of what was charged for them
// before. `node_gpus[i]`: the node's GPU that is the slice's i-th.
void charge_unattached(shm::Limits& limits, const std::vector<int>& node_gpus,
                       const std::vector<Bypass>& bypasses);

void describe(const Bypass& bypass, v1::Bypass* description);

// For the log: who, where, how much.
std::string in_words(const Bypass& bypass);

}  // namespace broker
