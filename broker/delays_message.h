// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "broker/api/cuslice.pb.h"
#include "broker/delays.h"

namespace broker {

// `id_of` names a slice; empty: it has gone.
void describe(const std::vector<Delays::Window>& windows,
              const std::function<std::string(limiter::SliceKey)>& id_of,
              cuslice::broker::v1::ExplainTimeResponse* response);

}  // namespace broker
