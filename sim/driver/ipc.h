// SPDX-License-Identifier: Apache-2.0
//
// cuIpc*: another process' device memory. Works between processes that see each other in /proc and may read
// each other's descriptors; across pid namespaces it does not.
#pragma once

#include "sim/driver/memory.h"

namespace sim {

void close_imported_memory(const Allocation& allocation);

}  // namespace sim
