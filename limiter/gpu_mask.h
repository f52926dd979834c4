// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace limiter {

template <typename Action>
void for_each_gpu(uint64_t mask, Action action) {
  for (; mask != 0; mask &= mask - 1) action(std::countr_zero(mask));
}

}  // namespace limiter
