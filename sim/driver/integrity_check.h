// SPDX-License-Identifier: Apache-2.0
//
// The question by which cudart tells a driver that it can work with: a keyed digest over things that both know. A
// driver that does not answer it is refused with cudaErrorSoftwareValidityNotEstablished.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/driver/api.h"

namespace sim {

// HMAC (RFC 2104) with MD2 (RFC 1319), whose block is 16 bytes.
void hmac_md2(const uint8_t key[16], const void* message, size_t bytes, uint8_t digest[16]);

// Answers version `version` of the question at time `seconds`. The addresses are those that the caller was given.
void answer_integrity_check(uint32_t version, uint64_t seconds, const void* runtime_table, const void* check_table,
                            const void* check_function, uint8_t answer[16]);

}  // namespace sim
