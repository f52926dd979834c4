// SPDX-License-Identifier: Apache-2.0
//
// What the simulator says on stderr: only that a program uses something that is not simulated. Each thing is
// said once. SIMGPU_QUIET=1 silences it; SIMGPU_STRICT=1 ends the process instead of going on.
#pragma once

namespace sim {

// Says "simgpu: <what> is not simulated" the first time this `what` comes (compared by content).
void report_unsimulated(const char* what);

}  // namespace sim
