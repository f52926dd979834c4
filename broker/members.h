// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "broker/event_loop.h"
#include "broker/process.h"
#include "broker/slice_files.h"

namespace broker {

// The processes of one slice, from attach to reaping. A member is held by its pidfd; what says who is in
// which slot is SlotRecord in `limits`, so that a later broker finds everybody again. Owned and called by the
// loop's thread.
class Members {
 public:
  struct Events {
    std::function<void(uint32_t slot)> joined;
    // The process has ended; its slot is cleared when this returns.
    std::function<void(uint32_t slot, pid_t pid)> ended;
    std::function<void()> reaped;
  };

  Members(EventLoop& loop, SliceFiles& files, Events events);
  ~Members();
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  shm::AttachStatus attach(Process process, const shm::AttachRequest& request);

  // Finds the processes that are in a slot and did not attach to this broker: by the record of an earlier
  // one, or by what their slots say about pid and namespace. Those that are gone are reaped; but not who may
  // only be out of sight, because the slice's records were written in another pid namespace. Who is not
  // recorded and was not in the slot `grace_ns` ago may be about to attach, and is left for a later call.
  // false: there is one of those.
  bool adopt(uint64_t grace_ns);

  // Whether the pids that an earlier broker wrote down are of this process's pid namespace.
  bool records_are_ours() const { return records_are_ours_; }
  bool empty() const { return members_.empty(); }
  size_t count() const { return members_.size(); }
  std::vector<uint32_t> pids() const;
  // Calls visit(slot, generation, pid) for each.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& [slot, member] : members_) visit(slot, member.generation, member.process.pid);
  }

 private:
  struct Member {
    Process process;
    uint32_t generation = 0;
    EventLoop::WatchId watch = 0;
  };

  struct Newcomer {
    uint32_t generation = 0;
    uint64_t seen_ns = 0;  // first
  };

  bool is_due(uint32_t slot, uint32_t generation, uint64_t grace_ns);
  void join(uint32_t slot, uint32_t generation, Process process);
  void leave(uint32_t slot);
  void reap(uint32_t slot, uint32_t generation, pid_t pid);

  EventLoop& loop_;
  SliceFiles& files_;
  const Events events_;
  // Others mean nothing here, and are left for who wrote them.
  const bool records_are_ours_;
  std::map<uint32_t, Member> members_;      // by slot
  std::map<uint32_t, Newcomer> newcomers_;  // likewise: in a slot, not recorded, not attached
};

}  // namespace broker
