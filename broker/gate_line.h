// SPDX-License-Identifier: Apache-2.0
//
// The broker's side of a slice's gate: what the arbiter decides becomes words that launches read.
#pragma once

#include "limiter/arbiter.h"
#include "shm/layout.h"

namespace broker {

// Writes a decision into the slice's gate line and wakes the launches that wait there. `run_ahead_ns` is the
// work that may be outstanding in a turn. One caller at a time per gate.
void write_gate(shm::Gate& gate, const limiter::Command& command, uint64_t run_ahead_ns);

// Nothing is launched any more (quarantine, policy).
void block_gate(shm::Gate& gate);

}  // namespace broker
