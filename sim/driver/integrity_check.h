// SPDX-License-Identifier: Apache-2.0
//
// The question by which cudart tells a driver that it can work with: a keyed digest over things that both
// know. A driver that does not answer it is refused with cudaErrorSoftwareValidityNotEstablished.
#pragma once

#include <cstdint>

namespace sim {

// Answers version `version` of the question at time `seconds`. The addresses are those that the caller was
// given.
void answer_integrity_check(uint32_t version, uint64_t seconds, const void* runtime_table,
                            const void* check_table, const void* check_function, uint8_t answer[16]);

}  // namespace sim
