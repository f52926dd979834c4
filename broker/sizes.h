// SPDX-License-Identifier: Apache-2.0
//
// Amounts as people write them: `10GiB`, `1.5Gi`, `10GB`, `512MiB`, `1073741824`, `25%`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "broker/status.h"

namespace broker {

// Memory on a GPU: bytes, or a percentage of what the GPU has for slices.
struct MemoryAmount {
  uint64_t bytes = 0;
  double percent = 0;  // used if bytes is 0
};

// Ki, Mi, Gi, Ti (and KiB ...) are powers of 1024; k, K, M, G, T (and kB ...) of 1000, as in Kubernetes.
Status parse_memory(std::string_view text, MemoryAmount* amount);

// A share of a GPU's time: `25` or `25%`, whole percent from 1 to 100.
Status parse_share(std::string_view text, uint32_t* percent);

// "9.5 GiB": at most three digits before the unit, one decimal where it says something.
std::string format_bytes(uint64_t bytes);

}  // namespace broker
