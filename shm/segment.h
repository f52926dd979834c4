// SPDX-License-Identifier: Apache-2.0
//
// Maps and makes the files of a slice directory. The only place that maps shared memory.
//
// Plain system calls and no C++ library: the preloaded libraries use the attach half, and they may need
// nothing but libc. No function throws, allocates or prints. Thread-safe. A mapping lasts until detach(); the
// guest never detaches (the application may call into CUDA until its last instruction).
#pragma once

#include "shm/layout.h"

namespace shm {

enum class AttachResult : uint8_t {
  kReady,
  kNotThere,  // no such file: no slice
  kNotReady,  // version is still 0: the broker is making it (or died doing so)
  kWrongVersion,
  kNotASlice,  // wrong magic, or header contradicts itself
  kTooShort,   // truncated
  kDenied,     // EACCES or EPERM
  kFailed,     // anything else; errno says what
};

// In words, for "slice /run/...: <text>".
const char* describe(AttachResult result);

// `directory` is the slice directory. On kReady *limits or *state points to the mapping, whole and checked:
// magic, version, length against the file's size, gpu_count in range. Else *limits or *state is unchanged.
AttachResult attach_limits(const char* directory, const Limits** limits);
AttachResult attach_state(const char* directory, State** state);                  // read and write
AttachResult attach_state_read_only(const char* directory, const State** state);  // tools
void detach(const Limits* limits);
void detach(const State* state);

// --- The broker's half.

struct GpuTerms {
  uint8_t uuid[16];
  uint64_t quota_bytes;
  uint64_t device_bytes;
  uint64_t context_bytes;
};

struct SliceTerms {
  const char* id;  // 1 to 63 characters
  const GpuTerms* gpus;
  int gpu_count;  // 1 .. kMaxGpus
  uint32_t compute_percent, compute_limit_percent, priority;
};

// Makes both files in an existing directory (limits 0644, state 0666) and returns their mappings, gate
// parked. false: errno says why; nothing is left behind. `version` is stored last.
bool create(const char* directory, const SliceTerms& terms, Limits** limits, State** state);
// The broker that takes over: as attach_limits, but writable.
AttachResult attach_limits_writable(const char* directory, Limits** limits);

}  // namespace shm
