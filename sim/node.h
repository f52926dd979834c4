// SPDX-License-Identifier: Apache-2.0
//
// One simulated node: its GPUs, and every process that uses them.
//
// The node is a file in the directory named by SIMGPU_NODE, mapped by all processes of the node. There is no
// daemon: the state is a discrete-event simulation that whoever looks at it first advances to the present,
// under a robust lock. So a kernel costs no wake-up, and a process that is killed at any instruction leaves
// nothing but its own entries, which the next one to look removes (its pid is gone) together with its memory
// and its work.
//
// Who uses this: the simulated driver (submits work, takes memory), the simulated NVML (reads), `simgpu`
// (makes the node). Thread-safe. No exceptions. Times are CLOCK_MONOTONIC nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/faults.h"
#include "sim/gpu_models.h"
#include "sim/process.h"

namespace sim {

constexpr int kMaxDevices = 16;
constexpr int kMaxContexts = 2560;       // per node; more is CUDA_ERROR_OUT_OF_MEMORY, as on a real one
constexpr int kChannelsPerContext = 32;  // hardware queues; streams share them
constexpr int kChannelDepth = 1024;      // a submission past it waits, as on a real GPU
constexpr int kMarkerTimes = 65536;

// Settings of a node, fixed when `simgpu` makes it (or by environment, when a program makes its own).
struct NodeSettings {
  int device_count = 1;
  char gpu[16] = "h100";                  // key into gpu_models
  uint32_t driver_version = 13000;        // as cuDriverGetVersion
  uint64_t time_slice_ns = 2'000'000;     // the driver's own round robin between contexts
  uint64_t context_switch_ns = 100'000;   // lost at each change of context
  uint64_t context_bytes = 500ull << 20;  // VRAM that a context takes
  uint64_t default_kernel_ns = 10'000;    // a kernel of which nothing else is known
  uint64_t copy_bytes_per_us = 0;         // 0: copies take no simulated time
};

// A context of this process on a device, known to the node. Index into the node's table; reused after
// destroy.
using ContextId = int32_t;
constexpr ContextId kNoContext = -1;

// A position in a channel: work submitted with ticket t is done when the channel's completed count is >= t.
struct Ticket {
  int32_t channel = -1;  // -1: nothing to wait for
  uint64_t number = 0;
};

// A ticket that any process of the node can ask about.
struct SharedTicket {
  ContextId context = kNoContext;
  uint32_t generation = 0;  // which of the contexts that had this entry
  Ticket ticket;
};

struct Work {
  enum class Kind : uint8_t {
    kKernel,  // occupies SMs; runs only while its context has the GPU; counts as busy time
    kCopy,    // runs on a copy engine: beside kernels and other contexts; not busy time
    kMarker,  // takes no time: an event, a barrier
    // Ends when finish_spin() is called. With sms > 0 a kernel (a persistent one); with sms == 0 it only
    // holds its channel, and needs no SMs nor the context's turn (waits for a memory word, host functions).
    kSpin,
  };
  Kind kind = Kind::kKernel;
  uint64_t duration_ns = 0;
  // SMs that a kKernel occupies; 0 or more than the device has: all of them. Kernels of one context run
  // beside each other as long as their SMs fit, and start strictly in the order of their submission.
  uint32_t sms = 0;
  // Kernels of one partition (not 0) share partition_sms of the device's SMs, and hold back only each other.
  uint8_t partition = 0;
  uint16_t partition_sms = 0;
  // Starts only when these are done too (other channels of the same context).
  const Ticket* after = nullptr;
  int after_count = 0;  // at most 4; the caller chains markers for more
};

struct NodeFile;
struct Context;
struct SharedMemory;
struct SharedHold;

struct MemoryInfo {
  uint64_t total_bytes;     // what processes can have, as cuDeviceTotalMem says it
  uint64_t reserved_bytes;  // the driver's own, beside that: NVML's total is the sum of the two
  uint64_t used_bytes;      // all processes' together, contexts included
};

struct ProcessUse {
  uint32_t pid;
  uint64_t used_bytes;  // contexts included
  uint64_t busy_ns;     // GPU time received since its first context
};

struct DeviceUse {
  uint64_t busy_ns;    // time with a kernel running, since the node was made
  uint64_t switch_ns;  // time lost to context switches
  uint64_t switches;
};

class Node {
 public:
  // The node of this process: attached at the first call (made anew from SIMGPU_* variables if SIMGPU_NODE is
  // unset: a private one in memory). Never destroyed. A forked child is a process of its own on the same
  // node, with nothing of its parent's. If there is no attaching, it says why on stderr, once, and the node
  // has no devices.
  static Node& get();

  const NodeSettings& settings() const;
  int device_count() const { return settings().device_count; }
  const GpuModel& model(int device) const;
  void uuid(int device, uint8_t out[16]) const;  // stable per node directory and device
  void pci(int device, uint32_t* domain, uint32_t* bus, uint32_t* dev) const;

  // --- VRAM. Bytes are what the caller says (the driver rounds); exhaustion is over all processes of the
  // node.
  // Managed memory takes from the device, but NVML does not list it under the process.
  enum class Memory : uint8_t { kListed, kManaged };
  bool take_memory(int device, uint64_t bytes, Memory kind = Memory::kListed);  // false: the device is full
  void give_memory(int device, uint64_t bytes,
                   Memory kind = Memory::kListed);  // of this process only; saturates
  MemoryInfo memory(int device);

  // Memory of this process that others import. They take nothing of the device; but what they hold stays in
  // use when the exporter gives it back or ends, under nobody's name, until the last of them lets it go.
  uint64_t share_memory(int device, uint64_t bytes);  // a key for others; 0: no room in the table
  void give_shared_memory(int device, uint64_t key);  // in place of give_memory()
  bool hold_shared_memory(int device, uint64_t key);  // false: it is no more, or no room in the table
  void let_shared_memory_go(int device, uint64_t key);

  // --- Contexts. A context takes settings().context_bytes and puts the process into NVML's list at once.
  ContextId create_context(int device);     // kNoContext: no memory (or no room in the table)
  void destroy_context(ContextId context);  // its pending work is dropped

  // A context or channel that is not this process's is ignored: nothing is submitted, everything is
  // completed.

  // --- Work.
  // Submits to a channel. Blocks (no lock held) while the channel is full.
  Ticket submit(ContextId context, int channel, const Work& work);
  void finish_spin(ContextId context, Ticket spin);
  bool completed(ContextId context, Ticket ticket);
  // 0 if not completed yet. Else the simulated time at which it was. Kept for the last kChannelDepth tickets
  // of a channel, and beyond these for its last kMarkerTimes markers (so an event should be a kMarker); a
  // ticket that is older still answers a later time.
  uint64_t completed_at(ContextId context, Ticket ticket);
  void wait(ContextId context, Ticket ticket);  // sleeps, but for the last few microseconds
  SharedTicket shared(ContextId context, Ticket ticket);
  bool completed(const SharedTicket& shared);  // true too once its context is gone
  // A marker after everything submitted to all channels of the context so far.
  Ticket submit_join(ContextId context, int channel);

  // --- Faults, as they are set for the device and for this process.
  Faults faults(int device) const;
  void set_faults(int device, const Faults& faults);
  bool may_be_faulty(int device) const;  // cheap; false: no need to ask for faults
  // An error of the device, as NVML tells it; it ends the work of the process (0: of none), whose calls fail
  // from then on. False: that process does not use the device.
  bool report_xid(int device, uint32_t xid, uint32_t pid);
  uint32_t own_xid(int device);  // what ended this process' work; 0: nothing
  uint64_t xid_count(int device);
  uint32_t xid(int device, uint64_t number);  // of the last 64, the first is 0
  uint32_t events() const;                    // changes with every Xid of the node
  void wait_for_event(uint32_t seen, uint64_t until_ns);

  // --- What NVML shows. A process that died may be seen for another millisecond, unless it is told to go
  // first.
  void remove_dead_processes(int device);
  int processes(int device, ProcessUse* out,
                int capacity);  // processes with a context; returns how many there are
  DeviceUse device_use(int device);
  // Busy percent over the last window (up to about 1 s back), of the device and of one process.
  uint32_t utilization_percent(int device, uint64_t window_ns);
  uint32_t process_utilization_percent(int device, uint32_t pid, uint64_t window_ns);

 private:
  class LockedDevice;
  struct MarkerTimes;
  enum class Sweep { kIfDue, kIfOthersRun, kNow };

  Node(NodeFile* file, Lives lives);

  bool is_ours(const Context& context) const;
  int own_process(LockedDevice& locked, bool make);
  bool has_memory(LockedDevice& locked, uint64_t bytes);
  void sweep(LockedDevice& locked);
  void remove_process(LockedDevice& locked, int process);
  void remove_context(LockedDevice& locked, int context);
  void recover(LockedDevice& locked);
  bool request_is_refused(int device);
  void drop_hold(LockedDevice& locked, SharedHold& hold);
  void disown(LockedDevice& locked, SharedMemory& shared);
  void end_sharing(LockedDevice& locked, int process);
  Ticket submit_locked(LockedDevice& locked, ContextId context, int channel, const Work& work);
  void wait_for_room(ContextId context, int channel);
  void forget_marker_times(ContextId context);

  NodeFile* file_;  // nullptr: no node, no devices
  const Lives lives_;
  const GpuModel* model_;                         // all devices are of one model
  MarkerTimes* marker_times_[kMaxContexts] = {};  // of this process' contexts; under the lock of the device
};

}  // namespace sim
