// SPDX-License-Identifier: Apache-2.0
//
// Unpacks an LZ4 block, as fatbins hold them.
#pragma once

#include <cstddef>
#include <string>

namespace sim {

// False: damaged, or not `unpacked_bytes` long.
bool unpack_lz4(const unsigned char* packed, size_t packed_bytes, size_t unpacked_bytes,
                std::string* unpacked);

}  // namespace sim
