// SPDX-License-Identifier: Apache-2.0
//
// Who a process is, and whether another one still lives. Processes of a node may be in different pid and user
// namespaces, so nobody asks for pids: a process locks one byte of the node's file, of a number of its own,
// and keeps the lock by a mapping of the file, as a real driver knows its clients by their open device files.
// So what a process had goes when it ends or becomes another program by execve, and not before a child that
// it forked has ended too.
#pragma once

#include <cstdint>
#include <string>

namespace sim {

struct ProcessIdentity {
  uint64_t pid;   // as the node's host sees it
  uint64_t life;  // the byte that it locks; 0: there was no locking it
};

// The processes of one node, seen by one of them. One per process.
class Lives {
 public:
  // The node's file, by a path that is good wherever the process goes, and where its host's pids are to be
  // had.
  Lives(std::string file, std::string directory, uint64_t host_namespace);

  // Of the calling process. A forked child has its own. Cheap after the first call.
  const ProcessIdentity& self() const;

  // One look at many of them.
  class Look {
   public:
    explicit Look(const Lives& lives);
    ~Look();
    Look(const Look&) = delete;
    Look& operator=(const Look&) = delete;
    // False once nothing is left of the process. True when it cannot be told.
    bool is_alive(uint64_t life) const;

   private:
    const int fd_;
  };

 private:
  const std::string file_, directory_;
  const uint64_t host_namespace_;
};

// The pid namespace of this process. 0: /proc does not say.
uint64_t pid_namespace();

}  // namespace sim
