// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "broker/backstop.h"
#include "broker/event_loop.h"
#include "broker/members.h"
#include "broker/nvml.h"
#include "limiter/ledger.h"

namespace broker {

// What was last measured of a process on a GPU.
struct Measurement {
  uint32_t generation = ~0u;  // of the slot
  uint64_t overhead_bytes = 0;
  uint64_t excess_bytes = 0;  // charged beyond what the driver lists
  uint64_t releases = 0;      // these two of SlotUse at that moment
  uint64_t calls = 0;
};

// A measurement, so that held + overhead - excess is what the driver lists for the process, managed memory
// aside; in a process that has only ever taken there is no excess, so that its free memory never rises. The
// overhead rises at once, and falls after the process has given something back. With pools it falls only by
// more than they explain: a pool that the driver has shrunk without a call may grow again to what the process
// is charged for, and must find its charge. Preconditions: `use` was quiescent.
Measurement measure(const Measurement& last, uint32_t generation, const limiter::SlotUse& use,
                    uint64_t listed_bytes);

// From one look to the next where nothing happens in between: twice the last, up to 30 s. While nobody is
// attached to any slice, up to 10 minutes: a process that bypasses its slice then takes from nobody, and the
// first that attaches is a reason to look.
uint64_t next_interval_ns(uint64_t interval_ns, bool anybody_attached);

// Charges slices for what the driver takes unasked in their processes (contexts, modules, local memory, ...),
// read from NVML, and for what dead processes have not given back yet. Looks when somebody attaches or makes
// a context, then after next_interval_ns(1 s), and so on, while there are slices. Processes that did not
// reach the attach socket are adopted on the way, and the backstop is told what is seen. Owned and called by
// the loop's thread.
class Reconciler {
 public:
  Reconciler(EventLoop& loop, const Nvml& nvml, Backstop& backstop);

  // `node_gpus[i]`: the node's GPU that is the slice's i-th; -1: not on this node. All pointers live until
  // remove().
  void add(uint64_t key, SliceFiles* files, Members* members, std::vector<int> node_gpus);
  void remove(uint64_t key);

  // What the driver lists on a GPU for processes that are attached to no slice that has it.
  std::vector<ProcessMemory> strangers(int node_gpu) const;

  // Looks soon, and begins with short intervals again.
  void wake();
  // The process of the slice has ended: what NVML still lists under it is orphaned, until it no longer does.
  void bury(uint64_t key, uint32_t slot, pid_t pid);
  // Orphaned bytes that an earlier broker left in `limits`.
  void take_over_orphans(uint64_t key);

  // What a first context takes on each GPU of the node, as learned; a safe value before.
  const std::vector<uint64_t>& context_bytes() const { return context_bytes_; }

 private:
  struct Slice {
    SliceFiles* files;
    Members* members;
    std::vector<int> node_gpus;
    std::map<std::pair<int, uint32_t>, Measurement> measured;  // by GPU of the slice and slot
  };
  struct Orphan {
    uint64_t key;
    int gpu;  // of the slice
    pid_t pid;
    uint64_t bytes;
  };

  void look();
  // false: a process whose context was never measured was busy; look again soon. `any_change`: set if a
  // process has made a call that may change what it holds since the last look.
  bool look_at(int node_gpu, bool* any_change);
  void learn_context(int node_gpu, uint64_t bytes);
  void look_for_orphans();
  void adopt_orphan(const Orphan& orphan);
  void schedule(uint64_t delay_ns);
  bool has_gpu(const Slice& slice, int node_gpu) const;
  // Of the slices that have the GPU.
  std::set<uint32_t> attached_pids(int node_gpu) const;

  EventLoop& loop_;
  const Nvml& nvml_;
  Backstop& backstop_;
  std::map<uint64_t, Slice> slices_;
  std::vector<Orphan> orphans_;
  std::vector<uint64_t> context_bytes_;
  uint64_t interval_ns_ = 0;  // to the next look
  uint64_t retry_ns_ = 0;     // the same while a process was too busy to be measured
  uint64_t scheduled_ns_ = UINT64_MAX;
  bool orphans_scheduled_ = false;
};

}  // namespace broker
