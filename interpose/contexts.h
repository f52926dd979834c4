// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hook {

void forget_contexts();

}  // namespace hook
