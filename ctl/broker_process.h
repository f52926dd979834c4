// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "broker/run_directory.h"
#include "ctl/client.h"

namespace ctl {

// Calls the broker of `run`. If none answers, starts `cusliced --transient` from beside this program, and
// calls again: only one of several commands that start at the same time does, and a broker that is just
// ending is waited for.
Status call_with_broker(const broker::RunDirectory& run, const std::function<Status(Client&)>& call);

}  // namespace ctl
