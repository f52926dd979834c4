// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpose/quota.h"

namespace hook {

void forget_pools();

}  // namespace hook
