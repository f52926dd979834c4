// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: address ranges, memory handles, and mappings of one into the other.
#pragma once

#include <cstdint>

namespace sim {

// True if the address lies in a range of cuMemAddressReserve.
bool in_reserved_range(uint64_t address);

}  // namespace sim
