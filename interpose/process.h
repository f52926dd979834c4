// SPDX-License-Identifier: Apache-2.0
//
// Who this process is, and whether another one lives, from /proc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "limiter/ledger.h"

namespace hook {

void identify_self(limiter::ProcessIdentity* self);

// True only if no process of this pid namespace has that pid and start time. What can't be told counts as
// alive.
bool process_is_dead(uint32_t pid, uint64_t start_time);

// How often this process has mapped the file at `path`, from its beginning. 0 too where /proc does not tell.
int count_mappings(const char* path);

// Writes the digits and a closing 0; how many digits. At most 20.
size_t write_decimal(uint64_t number, char* out);

}  // namespace hook
