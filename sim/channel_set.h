// SPDX-License-Identifier: Apache-2.0
//
// Channels of one context as a set of bits.
#pragma once

#include <bit>
#include <cstdint>

namespace sim {

constexpr uint32_t bit(int channel) { return 1u << channel; }

// Precondition: the set is not empty.
inline int take_lowest(uint32_t& channels) {
  const int channel = std::countr_zero(channels);
  channels &= channels - 1;
  return channel;
}

}  // namespace sim
