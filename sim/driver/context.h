// SPDX-License-Identifier: Apache-2.0
//
// Contexts, the current one of each thread, and what a context owns. A context is never freed: programs use
// stale handles in their exit handlers, and must get an error for it.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/driver/api.h"
#include "sim/driver/block_heap.h"
#include "sim/driver/device.h"
#include "sim/node.h"

namespace sim {
class Moment;
using MomentPtr = std::shared_ptr<Moment>;

// A hardware queue. Knows which moments still need their time read before the node forgets it.
struct Channel {
  std::mutex mutex;
  std::deque<std::shared_ptr<Moment>> untimed;  // in ticket order
  std::atomic<size_t> untimed_count{0};
};

// SMs that kernels keep to. The number tells partitions of one device apart; 0: all of its SMs.
struct Partition {
  uint8_t number = 0;
  unsigned sms = 0;
};

// What cudart stores with a context, by its own key: every copy of cudart in a process has another one.
struct LocalStorage {
  void* value;
  void (*destructor)(CUcontext, void* key, void* value);
};
}  // namespace sim

struct CUctx_st {
  static constexpr uint32_t kMagic = 0x63747831;
  const uint32_t magic = kMagic;
  const CUdevice device;
  const bool primary;
  const uint64_t id;
  // Whose memory, modules and hardware queues it uses: its own, or the primary context's if it is green.
  CUctx_st* const owner;
  const CUgreenCtx green;          // nullptr: an ordinary context
  const sim::Partition partition;  // of a green one: what it may run on
  unsigned flags = 0;
  unsigned api_version = 3020;

  // Has a context on the node. The primary one exists before it is active and can be active again; others
  // end.
  std::atomic<bool> active{false};
  unsigned retained = 0;  // primary only; guarded by the lifecycle mutex
  std::atomic<sim::ContextId> node_context{sim::kNoContext};
  size_t limits[CU_LIMIT_MAX] = {};
  std::mutex limits_mutex;    // guards the next
  uint64_t limits_bytes = 0;  // taken from the device for limits that the program raised
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;

  std::mutex mutex;                   // guards the four below
  std::vector<CUstream_st*> streams;  // all but the legacy one
  std::map<uint64_t, CUstream_st*> thread_streams;
  std::vector<sim::MomentPtr> awaited;  // what streams that are made from now on wait for first
  std::atomic<unsigned> next_channel{0};
  CUstream_st* legacy = nullptr;
  std::atomic<uint64_t> legacy_work{0};    // operations of the legacy stream so far
  std::atomic<uint64_t> blocking_work{0};  // and of all streams that it waits for
  std::atomic<uint64_t> blocking_work_seen{0};

  sim::Channel channels[sim::kChannelsPerContext];

  std::mutex storage_mutex;
  std::map<void*, sim::LocalStorage> storage;

  std::mutex heap_mutex;
  sim::BlockHeap small_heap;  // allocations up to 1 MiB share 2 MiB blocks

  CUctx_st(CUdevice device, bool primary, uint64_t id);
  CUctx_st(CUctx_st* owner, uint64_t id, CUgreenCtx green, sim::Partition partition);
};

namespace sim {

// The current context, active. Errors: not initialized, none current (201), destroyed (709).
CUresult current_context(CUctx_st** context);
// The same, but an inactive primary context is good enough, and none is success with nullptr.
CUctx_st* current_context_or_null();

// A handle that a caller passed; NULL means the current one.
CUresult context_of(CUcontext handle, CUctx_st** context);

CUctx_st* primary_context(CUdevice device);

// Makes a context that shares all but its SMs and streams with the device's primary one, and keeps that
// active.
CUresult create_green_context(CUdevice device, CUgreenCtx green, Partition partition, CUctx_st** result);
// Its streams stay, detached.
void destroy_green_context(CUctx_st* context);

// True for a handle that is a context of ours (checked by its magic).
bool is_context(CUcontext handle);

// Takes the device's default or current pool back from contexts etc. when the last context of a device ends.
std::vector<CUctx_st*> active_contexts(CUdevice device);

}  // namespace sim
