// SPDX-License-Identifier: Apache-2.0
//
// NVML tells pids as the host sees them, which a process in a container does not know of itself. The host's
// simgpu tells it: it serves a socket in the node's directory, and answers a connection with the peer's pid
// as the kernel translates it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace sim {

class HostPids {
 public:
  // Serves the node in the directory, unless somebody does already. nullptr: *error says why, or is empty and
  // another serves it. Its thread has no signals unblocked.
  static std::unique_ptr<HostPids> serve(const std::string& directory, std::string* error);
  ~HostPids();

 private:
  struct Server;
  explicit HostPids(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

// The pid of this process for the node's host. Without an answer says so once, and answers the pid that it
// has here.
uint64_t ask_host_pid(const std::string& directory);

}  // namespace sim
