// SPDX-License-Identifier: Apache-2.0
//
// The two parts of `cuslicectl explain`, each of which prints what there is to say and what can be done about
// it; and words that other commands use too.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ctl/client.h"
#include "ctl/snapshot.h"

namespace ctl {

void explain_memory(const SliceView& slice);
// `time` without windows: no broker tells.
void explain_time(const SliceView& slice, const v1::ExplainTimeResponse& time);
nlohmann::json to_json(const v1::ExplainTimeResponse& time);

// What the broker found past a slice's limits.
std::string describe_bypass(const v1::Bypass& bypass);

// "4711", or "4711 (12 in its container)".
std::string name_of(const ProcessView& process);

}  // namespace ctl
