// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "ctl/snapshot.h"

namespace ctl {

// A slice as `ls --json` and `explain --json` print it. Names stay, new ones may come.
nlohmann::json to_json(const SliceView& slice);
nlohmann::json to_json(const RefusalView& refusal);

}  // namespace ctl
