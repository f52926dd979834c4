// SPDX-License-Identifier: Apache-2.0
//
// Processes of the node, known for sure: by pid and start time, held by a pidfd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "broker/unique_fd.h"

namespace broker {

struct Process {
  pid_t pid = 0;
  uint64_t start_time = 0;  // field 22 of /proc/<pid>/stat
  UniqueFd pidfd;           // readable when the process has ended
};

// 0: no such process.
uint64_t process_start_time(pid_t pid);
pid_t parent_of(pid_t pid);
// Its comm, which it chose itself; empty: no such process.
std::string process_name(pid_t pid);

// Nothing if the process is gone, or another one has its pid by now (start_time != 0 and different).
std::optional<Process> open_process(pid_t pid, uint64_t start_time);

// The process at the other end of a connected unix socket. Nothing: it has gone, or it is in a pid namespace
// that this process cannot see into.
std::optional<Process> open_peer(int socket);

// The inode of this process's pid namespace; 0: /proc does not tell.
uint64_t own_pid_namespace();
// Whether that is the first one of the system, to which every process is known.
bool sees_all_processes();

// Finds processes by what they know of themselves. Looks through /proc at most once, at the first question
// that needs it: for the questions of one moment.
class NamespaceSearch {
 public:
  // The process that is `pid` in the pid namespace with this inode. Whatever start time it knows of itself
  // may be that of a time namespace.
  std::optional<Process> find(uint64_t pid_namespace, uint32_t pid);

 private:
  using Known = std::map<std::pair<uint64_t, uint32_t>, pid_t>;  // by namespace and pid in it
  std::optional<Known> known_;
};

}  // namespace broker
