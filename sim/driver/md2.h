// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace sim {

// RFC 1319.
void md2(const void* message, size_t bytes, uint8_t digest[16]);

// HMAC (RFC 2104) with MD2, whose block is 16 bytes.
void hmac_md2(const uint8_t key[16], const void* message, size_t bytes, uint8_t digest[16]);

}  // namespace sim
