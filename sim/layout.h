// SPDX-License-Identifier: Apache-2.0
//
// The node file: everything that the processes of a simulated node share. Only the simulator's own processes
// of one build map it, so its layout is no promise to anyone; a file of another layout is refused by
// `version`.
//
// All zeroes is a valid empty state, and the file is sparse: a context or channel that nobody used costs no
// memory.
//
//   header | settings | devices[16]: lock, engine state, processes, journal | contexts[2560] |
//   rings[2560][32][1024]
//
// Whatever belongs to a device (its contexts' entries included) is written under that device's lock, and,
// except where a field says otherwise, through the device's journal (journal.h).
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sim/busy_history.h"
#include "sim/faults.h"
#include "sim/node.h"

namespace sim {

constexpr uint64_t kNodeMagic = 0x53494d4750554e44;  // "SIMGPUND"
constexpr uint32_t kNodeVersion = 5;

constexpr int kMaxProcesses = 4096;  // per device
constexpr int kMaxAfter = 4;
constexpr int kMaxShared = 2048;       // pieces of memory per device that were exported
constexpr int kMaxSharedHolds = 8192;  // and importers of them
constexpr int kXidsKept = 64;
constexpr int kJournalEntries = 4096;
constexpr uint64_t kNever = UINT64_MAX;
inline uint64_t add_saturating(uint64_t a, uint64_t b) { return a > kNever - b ? kNever : a + b; }

// What a work item comes after: an item of a channel of the same context, in one word.
inline uint64_t pack_after(const Ticket& ticket) {
  return static_cast<uint64_t>(ticket.channel) << 48 | ticket.number;
}
inline int after_channel(uint64_t after) { return static_cast<int>(after >> 48); }
inline uint64_t after_number(uint64_t after) { return after & ((1ull << 48) - 1); }

// One submitted piece of work. Not journaled: an item is written before its channel's `submitted` makes it
// visible, and what is written later (completed_ns, finished) is never read before the journaled word that
// goes with it.
struct WorkItem {
  uint64_t order;  // device-wide, by time of submission
  uint64_t duration_ns;
  uint64_t work_end_ns;  // the durations of all the channel's work up to and with this, summed
  uint64_t completed_ns;
  uint16_t sms;
  uint16_t partition_sms;
  Work::Kind kind;
  uint8_t after_count;
  uint8_t finished;  // of a kSpin: finish_spin() was called
  uint8_t partition;
  uint64_t after[kMaxAfter];  // as of pack_after()
};

struct Channel {
  uint64_t submitted;  // number of the last item
  uint64_t completed;  // number of the last completed item; the head is the next
  uint64_t work_ns;    // work_end_ns of the last item
  // Of a head that needs the SMs: the time left while it does not run, the time of its end while it runs.
  uint64_t head_ns;
  uint32_t copy_next;  // the next in the device's copy queue, as lane + 1; 0: none
  uint32_t unused;
};

// A head is in none of the masks (channel empty), or in exactly one of blocked, held, copying and runnable.
struct Context {
  // Whose it is, so that a device's contexts can be found with nothing but this. Claimed by compare-and-swap
  // from 0, since two devices look for a free entry at once; not journaled.
  std::atomic<uint32_t> device_plus_one;
  uint32_t owner_plus_one;  // index into the device's processes; 0: nobody's (free, or being made)
  uint32_t generation;      // counts the uses of this entry
  uint32_t ready_next;      // next in the device's ready queue, as index + 1; 0: none
  uint32_t blocked;         // heads that wait for other channels
  uint32_t held;            // heads that only finish_spin() ends (a kSpin of no SMs)
  uint32_t copying;         // heads in the device's copy queue
  uint32_t runnable;        // heads that need the SMs
  uint32_t running;         // the part of runnable that has them
  uint32_t in_ready_queue;
  Channel channels[kChannelsPerContext];
};

struct Process {
  uint64_t pid;   // as the node's host sees it; 0: free
  uint64_t life;  // process.h
  uint64_t xid;   // the fault that ended its work; 0: none
  uint64_t memory_bytes;
  uint64_t managed_bytes;  // the part of memory_bytes that NVML does not list
  uint64_t contexts;
  uint64_t busy_ns;
  BusyHistory history;
};

// A piece of a process' memory that it exported.
struct SharedMemory {
  uint64_t key;  // random; 0: free
  uint64_t bytes;
  uint32_t owner_plus_one;  // 0: it has ended, and importers have what is left
  uint32_t holds;
};

struct SharedHold {
  uint64_t key;
  uint64_t process_plus_one;  // 0: free
};

struct JournalEntry {
  uint64_t offset_and_size;  // size << 56 | offset in the node file
  uint64_t old_value;
};

struct Device {
  pthread_mutex_t lock;  // robust, shared

  uint64_t now_ns;  // the simulation has been played up to here
  uint64_t last_order;

  // The context that has the SMs, as index + 1. It keeps them while it has nothing to run and nobody else
  // has.
  uint32_t current;
  uint32_t ready_head, ready_tail;  // contexts with work for the SMs that wait for their turn, as index + 1
  uint32_t copy_head,
      copy_tail;  // as lane + 1, lane = context * kChannelsPerContext + channel; the head runs
  uint32_t unused;
  uint64_t switch_end_ns;  // 0: not switching
  uint64_t slice_end_ns;   // meaningful while somebody waits
  uint64_t copy_end_ns;    // of copy_head
  uint64_t busy_since_ns;  // since when kernels run that are not in the busy sums yet; 0: none runs

  uint64_t busy_ns, switch_ns, switches;
  uint64_t used_bytes;
  uint64_t process_end;       // processes[] beyond it were never used
  uint64_t shared_end;        // and of shared[]
  uint64_t shared_holds_end;  // and of shared_holds[]
  BusyHistory history;

  // Not journaled: losing one of these costs a superfluous or a late look, nothing else.
  uint64_t swept_ns;           // when all processes were last checked for being alive
  std::atomic<uint32_t> wake;  // futex; bumped when something may be done sooner than a sleeper reckoned

  // Set from outside; faults.h.
  std::atomic<uint32_t> fault_changes;  // 0: there was never one
  Faults faults;
  std::atomic<uint64_t> requests;  // for memory, since the faults were set
  uint64_t xid_count;
  uint32_t xids[kXidsKept];  // the last ones, by number

  uint64_t journal_count;
  JournalEntry journal[kJournalEntries];
  Process processes[kMaxProcesses];
  SharedMemory shared[kMaxShared];
  SharedHold shared_holds[kMaxSharedHolds];
};

struct NodeFile {
  uint64_t magic;
  uint32_t version;
  uint32_t unused;
  uint64_t size_bytes;
  uint64_t identity;        // what the devices' UUIDs are made from
  uint64_t host_namespace;  // the pid namespace of who made it: NVML's pids are those of this one
  NodeSettings settings;
  std::atomic<uint32_t> context_end;  // contexts[] beyond it were never used
  std::atomic<uint32_t> events;       // futex; bumped with every Xid of any device
  alignas(4096) Device devices[kMaxDevices];
  alignas(4096) Context contexts[kMaxContexts];
  alignas(4096) WorkItem rings[kMaxContexts][kChannelsPerContext][kChannelDepth];
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace sim
