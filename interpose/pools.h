// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpose/quota.h"

namespace hook {

// From now on the pool's memory is charged to the GPU's slice; to nobody if there is none. false: no room for
// a further pool, it is not charged here; the broker finds it as overhead.
bool remember_pool(CUmemoryPool pool, const SliceGpu& gpu);

void forget_pools();

}  // namespace hook
