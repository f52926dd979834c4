// SPDX-License-Identifier: Apache-2.0
//
// Who a process is, so that another can tell later whether it still lives. The processes of a node share a
// pid namespace and can see each other in /proc.
#pragma once

#include <cstdint>

namespace sim {

struct ProcessIdentity {
  uint64_t pid;
  uint64_t start_time;  // tells a reused pid
  uint64_t image;       // random per execve: tells the program that the process ran before
};

// Of the calling process. A forked child has its own. Cheap after the first call.
const ProcessIdentity& this_process();

// False once the process has died, reaped or not, or its pid is another's. True when it cannot be told.
bool is_alive(uint64_t pid, uint64_t start_time);

}  // namespace sim
