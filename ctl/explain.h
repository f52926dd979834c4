// SPDX-License-Identifier: Apache-2.0
//
// The two parts of `cuslicectl explain`; each prints what there is to say, and what can be done about it.
#pragma once

#include <string>

#include "ctl/snapshot.h"

namespace ctl {

void explain_memory(const SliceView& slice);
void explain_time(const SliceView& slice);

// "4711", or "4711 (12 in its container)".
std::string name_of(const ProcessView& process);

}  // namespace ctl
