// SPDX-License-Identifier: Apache-2.0
//
// The format of a slice's shared memory. A slice is a directory with two mapped files and a socket:
//
//   limits   written by the broker only; tenants map it read-only.    What the slice may have.
//   state    written by the tenants, repaired by the broker.          What the slice's processes hold and do.
//   attach   a socket (SOCK_SEQPACKET): a process tells the broker its slot and is known by its credentials.
//
//   limits   | LimitsHeader 128 | Gate 64 | Heartbeat 64 | Share 64 | GpuLimits[16] 64 each |
//            | SlotRecord[2048] 32 each | overhead_bytes[16][2048] 8 each |
//   state    | StateHeader 128 | Doorbell 64 | Pace 64 | counters[32] 8 each | Refusal[32] 128 each |
//            | Slot[2048] 64 each | Work[2048] 64 each | SlotLedger[16][2048] 64 each |
//            | UnknownFunction[64] 64 each |
//
// Rules for everybody who touches this:
//
//  * Widths are fixed; no pointers, no size_t, no bool. Every offset is asserted below; README.md lists them.
//  * `version` is stored last, with release; 0 means: not ready. Readers load it with acquire.
//  * The other end is hostile: copy a word once, check the copy, use the copy. Tenants write what they like
//    into `state`: nothing in it may index memory or bound a loop before it was clamped.
//  * Times are CLOCK_MONOTONIC nanoseconds, sizes are bytes, shares are percent of one GPU. A copy of the
//    files on another machine can be read, but for its times.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shm {

constexpr uint64_t kLimitsMagic = 0x315354494d494c43;  // "CLIMITS1", little endian
constexpr uint64_t kStateMagic = 0x3153455441545343;   // "CSTATES1"
constexpr uint32_t kVersion = 1;

constexpr int kMaxGpus = 16;     // per slice
constexpr int kMaxSlots = 2048;  // processes attached to a slice at the same time
constexpr int kMaxCounters = 32;
constexpr int kMaxRefusals = 32;
constexpr int kMaxUnknownFunctions = 64;
constexpr int kSliceIdBytes = 64;  // with its closing 0

template <typename T>
using Shared = std::atomic<T>;
static_assert(Shared<uint64_t>::is_always_lock_free && Shared<uint32_t>::is_always_lock_free);

// ---------------------------------------------------------------------------------------------------- limits

struct LimitsHeader {
  uint64_t magic;
  Shared<uint32_t> version;
  uint32_t gpu_count;     // entries of GpuLimits in use, 1 .. kMaxGpus
  uint64_t length_bytes;  // of the whole file
  uint64_t created_ns;    // CLOCK_REALTIME
  char slice_id[kSliceIdBytes];
  Shared<uint32_t> flags;          // SliceFlag
  Shared<uint32_t> bypass_policy;  // BypassPolicy
  Shared<uint32_t> bypasses;       // processes found so far that use the GPU past the slice's limits
  uint32_t reserved[5];
};

// What the broker does about a process of the slice that holds more on the GPU than the slice knows of.
enum BypassPolicy : uint32_t {
  kBypassReport = 0,
  kBypassBlock = 1,  // kBlocked while it lives
  kBypassKill = 2,
};

enum SliceFlag : uint32_t {
  kQuarantined = 1u << 0,  // no new memory, gate closed: a file of it was found damaged, or kBypassed
  kDraining = 1u << 1,     // released while processes live: no new attach
  kBypassed = 1u << 2,  // a process is past the limits now; with kBypassBlock it is why kQuarantined is set
};

// The word that every launch reads, alone on its line; it changes when a gate opens or shuts, not per launch:
//
//   gate_word(kGateOpen, epoch)   straight to the driver; a stream's first launch in an epoch is noted
//   gate_word(kGateShut, epoch)   the slow path, which reads `mode`
//
// The epoch lies above the bits of any address, so that a stream's handle xor the word is never another's.
// `grant` is the futex word that waiting launches sleep on; it is incremented at every change of this line.
struct Gate {
  Shared<uint64_t> gate;
  Shared<uint32_t> grant;
  Shared<uint32_t> mode;          // GateMode
  Shared<uint64_t> deadline_ns;   // kTurn: end of the turn; kNoDeadline: until further notice
  Shared<uint32_t> turn;          // number of the turn; a new one for each grant
  Shared<uint32_t> others;        // OthersFlag
  Shared<uint64_t> run_ahead_ns;  // work that may be outstanding in a turn
  uint64_t reserved[3];
};

constexpr uint64_t kGateOpen = 1ull << 63;
constexpr uint64_t kGateShut = 1ull << 62;
constexpr int kGateEpochShift = 48;
constexpr uint64_t kGateEpochMask = 0xfff;
constexpr uint64_t gate_word(uint64_t flag, uint64_t epoch) {
  return flag | (epoch & kGateEpochMask) << kGateEpochShift;
}
constexpr uint64_t gate_epoch(uint64_t word) { return word >> kGateEpochShift & kGateEpochMask; }
constexpr uint64_t kNoDeadline = ~0ull;

enum OthersFlag : uint32_t {
  kOthersWait = 1u << 0,  // tell the broker at once when drained
  kOthersRun = 1u << 1,   // at the same time: a kernel may seem longer than it is
};

enum GateMode : uint32_t {
  kParked = 0,   // no turn: a launch rings the doorbell and waits
  kOpen = 1,     // shares its GPUs with no other slice and has no cap: everything passes
  kTurn = 2,     // holds the turn: launches pass within run_ahead_ns of outstanding work, until deadline_ns
  kBlocked = 3,  // nothing is launched (policy `block`, quarantine)
};

struct Heartbeat {
  Shared<uint64_t> beat_ns;     // renewed every 100 ms while a launch of the slice waits or a turn runs
  Shared<uint32_t> broker_pid;  // host pid; 0: never had a broker
  // Inode of the pid namespace of the broker that wrote the slot records, whose pids are of that; 0: not
  // known.
  Shared<uint32_t> records_namespace;
  uint32_t reserved[12];
};

struct Share {
  Shared<uint32_t> compute_percent;        // guaranteed under contention, 1 .. 100
  Shared<uint32_t> compute_limit_percent;  // cap, 1 .. 100
  Shared<uint32_t> priority;               // 0 batch, 1 latency class
  Shared<uint32_t> rates_at_s;  // CLOCK_MONOTONIC, in seconds: when the rates are from; 0: none yet
  Shared<uint64_t> held_ns;    // GPU time received so far: of its work where that is known, else of its turns
  Shared<uint64_t> waited_ns;  // time with a launch waiting at the gate so far
  Shared<uint64_t> turns;
  Shared<uint64_t> overruns;  // turns that ended more than a quarter of a quantum late
  // GPU time received, and time with work to do, over the last kRateWindowsS: see rate(). While a slice has
  // work they are renewed every second; once it has none it receives nothing until they are renewed.
  Shared<uint64_t> received_rates;
  Shared<uint64_t> wanted_rates;
};

constexpr uint32_t kRateWindowsS[] = {1, 10, 60};
constexpr int kRateWindows = 3;
// One of the three figures in a word of rates, in hundredths of a percent.
constexpr uint32_t rate(uint64_t word, int window) { return word >> (16 * window) & 0xffff; }
constexpr uint64_t rates_word(const uint32_t (&hundredths)[kRateWindows]) {
  uint64_t word = 0;
  for (int i = 0; i < kRateWindows; ++i) word |= uint64_t{hundredths[i] & 0xffff} << (16 * i);
  return word;
}

struct GpuLimits {
  uint8_t uuid[16];  // as the driver reports it
  Shared<uint64_t> quota_bytes;
  // Of processes without a slot: dead ones, until the driver no longer lists them, and unattached_bytes.
  Shared<uint64_t> orphaned_bytes;
  Shared<uint64_t>
      context_bytes;  // what a first context takes here, as learned; see SlotLedger::context_floor
  Shared<uint64_t> device_bytes;      // cuDeviceTotalMem
  Shared<uint64_t> unattached_bytes;  // of processes of the slice that never attached
  uint64_t reserved;
};

// Who is in a slot, as the broker knows it (from SO_PEERCRED, never from `state`).
struct SlotRecord {
  Shared<uint32_t> host_pid;    // 0: nobody that the broker knows
  Shared<uint32_t> generation;  // of the slot when it attached
  Shared<uint64_t> start_time;  // /proc/<pid>/stat field 22, in clock ticks
  uint64_t reserved[2];
};

struct Limits {
  LimitsHeader header;
  Gate gate;
  Heartbeat heartbeat;
  Share share;
  GpuLimits gpus[kMaxGpus];
  SlotRecord slots[kMaxSlots];
  // What the driver took unasked in that process on that GPU (contexts, modules, ...): NVML's figure less
  // ours.
  Shared<uint64_t> overhead_bytes[kMaxGpus][kMaxSlots];
};

// ----------------------------------------------------------------------------------------------------- state

struct StateHeader {
  uint64_t magic;
  Shared<uint32_t> version;
  uint32_t reserved0;
  uint64_t length_bytes;
  Shared<uint32_t> slots_high;  // slots at and above this were never used; only grows
  uint32_t reserved[25];
};

// Tenants add to `rings` and wake it when the broker has to look; the broker sleeps on it.
struct Doorbell {
  Shared<uint32_t> rings;
  Shared<uint32_t> measure_requests;  // so far: what the driver takes in some process has changed unasked
  uint32_t reserved[14];
};

// Pacing without a broker: the time before which no further kernel may start (a leaky bucket, shared by the
// slice).
struct Pace {
  Shared<uint64_t> next_ns;
  uint64_t reserved[7];
};

// One of the last refusals, for `cuslicectl explain`. Written by the refused process; `sequence` last.
struct Refusal {
  Shared<uint64_t> sequence;  // 0: never used; the entry is number sequence % kMaxRefusals
  uint64_t time_ns;           // CLOCK_REALTIME
  uint64_t request_bytes;
  uint64_t used_bytes;  // by the slice, overhead included
  uint64_t quota_bytes;
  uint32_t gpu;       // index into GpuLimits
  uint32_t pid;       // as the process sees itself
  char function[48];  // the driver's name
  // All 0: not known.
  uint64_t overhead_bytes;     // the driver's own part of used_bytes
  uint64_t peer_pooled_bytes;  // what other processes' pools may hold unused
  char name[16];               // comm of the process
};

// A process of the slice. `owner` is the only word that decides who may use the slot:
//
//        attach (CAS)                reap (CAS)                    reap (CAS), after its ledger lines are 0
//   FREE(g) --------> LIVE(g) --------------------> REAPING(g) ---------------------------> FREE(g+1)
//
// owner = state in the low 8 bits | generation << 16. Who the owner is stands in words that are generation <<
// 48 | value: they change only from the same generation, and a reaper moves each to the next, so that no word
// is ever an earlier owner's, and none can write over a later one's. `process` is written last. LIVE without
// it is a process between two instructions of attach, or one that was killed there: the broker reaps it after
// a moment. Were it alive, it would find that out before it uses the slot, and take another.
struct Slot {
  Shared<uint32_t> owner;
  uint32_t reserved0;
  Shared<uint64_t> process;        // pid in the process' own pid namespace
  Shared<uint64_t> pid_namespace;  // inode of /proc/self/ns/pid
  Shared<uint64_t> start_time;     // /proc/self/stat field 22
  Shared<uint64_t> name[3];        // comm, 6 bytes in each, the first one lowest
  uint64_t reserved;
};

enum SlotState : uint32_t { kSlotFree = 0, kSlotLive = 1, kSlotReaping = 2 };

constexpr uint32_t slot_owner(SlotState state, uint32_t generation) {
  return state | (generation & 0xffff) << 16;
}
constexpr SlotState slot_state(uint32_t owner) { return static_cast<SlotState>(owner & 0xff); }
constexpr uint32_t slot_generation(uint32_t owner) { return owner >> 16; }

constexpr int kGenerationShift = 48;
constexpr uint64_t kGenerationValueMask = (1ull << kGenerationShift) - 1;

// What a word of a slot says of its live owner; 0: nothing yet.
inline uint64_t slot_value(const Shared<uint64_t>& word, uint32_t owner) {
  const uint64_t seen = word.load(std::memory_order_acquire);
  return seen >> kGenerationShift == slot_generation(owner) ? seen & kGenerationValueMask : 0;
}
// The pid that the live owner of a slot has in its own pid namespace; 0: not known yet.
inline uint32_t slot_pid(const Slot& slot, uint32_t owner) {
  return static_cast<uint32_t>(slot_value(slot.process, owner));
}

constexpr int kNameBytes = 16;
constexpr int kNameBytesPerWord = 6;
// Not always closed by a 0.
inline void slot_name(const Slot& slot, uint32_t owner, char (&name)[kNameBytes]) {
  for (int i = 0; i < kNameBytes; i++) {
    const uint64_t part = slot_value(slot.name[i / kNameBytesPerWord], owner);
    name[i] = static_cast<char>(part >> (8 * (i % kNameBytesPerWord)));
  }
}

// What a process has on the GPU and wants from it, for the arbiter.
struct Work {
  Shared<uint32_t> waiting;            // threads that wait at the gate
  Shared<uint32_t> outstanding;        // outstanding_word(); 0: all is finished (only kept when not open)
  Shared<uint32_t> contexts;           // contexts that it has on the slice's GPUs
  Shared<uint32_t> closing_turn;       // number of the turn that it will launch no more in
  Shared<uint64_t> drained_ns;         // when outstanding last went to 0
  Shared<uint64_t> drain_expected_ns;  // closing: when it expects that
  Shared<uint64_t> occupied_ns;        // GPU time of its finished work so far, from events
  Shared<uint64_t> launches;           // launches that took the slow path so far
  // Time with work outstanding: so much until active_at_ns, when an end was last seen; while there is some,
  // the time since is more of it.
  Shared<uint64_t> active_ns;
  Shared<uint64_t> active_at_ns;
};

// Work.outstanding while there is some: what the oldest part of it is estimated at, in microseconds.
constexpr uint32_t outstanding_word(uint64_t oldest_ns) {
  const uint64_t us = oldest_ns / 1000;
  return us == 0 ? 1 : us < UINT32_MAX ? static_cast<uint32_t>(us) : UINT32_MAX;
}
constexpr uint64_t outstanding_ns(uint32_t word) { return uint64_t{word} * 1000; }

// A process' line on one GPU. The first four are generation << 48 | bytes; `calls` and `pooled` carry the
// generation too: an old incarnation, or a reaper that comes late, cannot change a new one's. Only
// limiter/ledger.h writes them; the protocol is described there.
struct SlotLedger {
  Shared<uint64_t> want;           // asked for, not granted yet
  Shared<uint64_t> held;           // granted
  Shared<uint64_t> managed;        // the part of held that the driver does not list under the process
  Shared<uint64_t> context_floor;  // charged for a first context until the broker has measured it
  Shared<uint64_t> calls;          // generation << 48 | ended << 24 | in flight: see below
  Shared<uint64_t> releases;       // how often something was given back
  Shared<uint64_t>
      pooled;  // generation << 48 | the part of held that the driver may take back without a call
  // calls_tag() << 48 | what the broker saw the process is charged beyond what it has, which is forgiven as
  // long as `calls` has that tag and none is in flight. Written by the broker, cleared by a release.
  Shared<uint64_t> excess;
};

// GpuLimits::context_bytes before a first context was measured on that GPU.
constexpr uint64_t kGuessedContextBytes = 512ull << 20;

constexpr uint64_t kLedgerBytesMask = kGenerationValueMask;

// SlotLedger::calls counts the process's calls that may change what it holds: those in flight, which are
// anywhere between their first change of the line and the driver's answer, and those that have ended, modulo
// 2^24. In one word, so that one comparison tells whether the line and the driver agreed all the time between
// two looks: the word is the same, and none is in flight. Nonsense in it only keeps its own process from
// being measured.
constexpr int kCallsEndedShift = 24;
constexpr uint64_t kCallsInFlightMask = (1ull << kCallsEndedShift) - 1;

// Generation and ended calls in 16 bits, for SlotLedger::excess.
constexpr uint64_t calls_tag(uint64_t calls) { return (calls >> 48 ^ calls >> kCallsEndedShift) & 0xffff; }

// counters[], in this order. The labels are in counters.h.
enum Counter : uint32_t {
  kRefusals = 0,
  kUnclassifiedLookups,
  kPacedLaunches,       // launches that paced themselves because the broker was silent
  kReadmittedLaunches,  // launches let through while draining because nothing completed (rule R2)
  kReservationRetries,
  kDriverRefusals,  // the driver had no memory although the slice had
  kSlotsFull,
  kCounterCount,
};
static_assert(kCounterCount <= kMaxCounters);

// A function of the driver that was looked up although the table does not know it. A set: an entry is found
// from its hash on, and taken by storing that; `name` follows.
struct UnknownFunction {
  Shared<uint64_t> hash;  // FNV-1a of the whole name; 0: free
  char name[56];          // not always closed by a 0
};

struct State {
  StateHeader header;
  Doorbell doorbell;
  Pace pace;
  Shared<uint64_t> counters[kMaxCounters];
  Refusal refusals[kMaxRefusals];
  Slot slots[kMaxSlots];
  Work work[kMaxSlots];
  SlotLedger ledger[kMaxGpus][kMaxSlots];
  UnknownFunction unknown[kMaxUnknownFunctions];
};

// Each size and offset is part of the format: a change of one is a new kVersion.
static_assert(sizeof(LimitsHeader) == 128 && sizeof(Gate) == 64 && sizeof(Heartbeat) == 64);
static_assert(sizeof(Share) == 64 && sizeof(GpuLimits) == 64 && sizeof(SlotRecord) == 32);
static_assert(offsetof(Limits, gate) == 128 && offsetof(Limits, heartbeat) == 192);
static_assert(offsetof(Limits, share) == 256 && offsetof(Limits, gpus) == 320);
static_assert(offsetof(Limits, slots) == 1344 && offsetof(Limits, overhead_bytes) == 66880);
static_assert(sizeof(Limits) == 329024);
static_assert(sizeof(StateHeader) == 128 && sizeof(Doorbell) == 64 && sizeof(Pace) == 64);
static_assert(sizeof(Refusal) == 128 && sizeof(Slot) == 64 && sizeof(Work) == 64 && sizeof(SlotLedger) == 64);
static_assert(offsetof(State, doorbell) == 128 && offsetof(State, pace) == 192);
static_assert(offsetof(State, counters) == 256 && offsetof(State, refusals) == 512);
static_assert(offsetof(State, slots) == 4608 && offsetof(State, work) == 135680);
static_assert(offsetof(State, ledger) == 266752 && offsetof(State, unknown) == 2363904);
static_assert(sizeof(UnknownFunction) == 64 && sizeof(State) == 2368000);

// One message each way on the `attach` socket; the socket may be closed afterwards.
struct AttachRequest {
  uint32_t version;  // kVersion of the library
  uint32_t slot;
  uint32_t generation;
  uint32_t reserved;
};
struct AttachReply {
  uint32_t status;    // AttachStatus
  uint32_t host_pid;  // as the broker sees the process
  uint32_t reserved[2];
};
enum AttachStatus : uint32_t {
  kAttached = 0,
  kAttachRefused = 1,
  kAttachWrongVersion = 2,
  kAttachDraining = 3
};
static_assert(sizeof(AttachRequest) == 16 && sizeof(AttachReply) == 16);

}  // namespace shm
