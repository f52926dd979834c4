// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "broker/run_directory.h"
#include "ctl/client.h"

namespace ctl {

// Makes the slice at the broker of `run`. If none answers, starts `cusliced --transient` from beside this
// program: only one of several commands that start at the same time does, and a broker that is just ending is
// waited for.
Status prepare_with_broker(const broker::RunDirectory& run, const v1::PrepareSliceRequest& request,
                           v1::Slice* slice);

}  // namespace ctl
