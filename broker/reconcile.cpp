// SPDX-License-Identifier: Apache-2.0
#include "broker/reconcile.h"

#include <algorithm>

#include "broker/clock.h"

namespace broker {
namespace {

constexpr uint64_t kFirstIntervalNs = 1'000'000'000;
constexpr uint64_t kLongestIntervalNs = 30'000'000'000;
constexpr uint64_t kRetryNs = 2'000'000;
constexpr uint64_t kOrphanIntervalNs = 100'000'000;

constexpr uint64_t kUnknownContextBytes = 512ull << 20;
constexpr uint64_t kLeastContextBytes = 64ull << 20;
constexpr uint64_t kMostContextBytes = 2ull << 30;

const ProcessMemory* find(const std::vector<ProcessMemory>& processes, pid_t pid) {
  for (const ProcessMemory& process : processes) {
    if (process.pid == static_cast<uint32_t>(pid)) return &process;
  }
  return nullptr;
}

}  // namespace

Measurement measure(const Measurement& last, uint32_t generation, const limiter::SlotUse& use,
                    uint64_t listed_bytes) {
  const uint64_t accounted = use.held_bytes - std::min(use.held_bytes, use.managed_bytes);
  const uint64_t overhead = listed_bytes - std::min(listed_bytes, accounted);
  const bool may_fall =
      last.generation != generation || (last.releases != use.releases && use.pooled_bytes == 0);
  if (overhead < last.overhead_bytes && !may_fall) return last;
  return {generation, overhead, use.releases};
}

Reconciler::Reconciler(EventLoop& loop, const Nvml& nvml)
    : loop_(loop), nvml_(nvml), context_bytes_(nvml.gpus().size(), kUnknownContextBytes) {}

void Reconciler::add(uint64_t key, SliceFiles* files, Members* members, std::vector<int> node_gpus) {
  slices_[key] = {files, members, std::move(node_gpus), {}};
}

void Reconciler::remove(uint64_t key) {
  slices_.erase(key);
  std::erase_if(orphans_, [&](const Orphan& orphan) { return orphan.key == key; });
}

void Reconciler::wake() {
  interval_ns_ = kFirstIntervalNs;
  retry_ns_ = kRetryNs;
  schedule(0);
}

void Reconciler::schedule(uint64_t delay_ns) {
  const uint64_t time_ns = now_ns() + delay_ns;
  if (time_ns >= scheduled_ns_) return;
  scheduled_ns_ = time_ns;
  loop_.call_at(time_ns, [this, time_ns] {
    if (time_ns != scheduled_ns_) return;  // replaced by an earlier one
    scheduled_ns_ = UINT64_MAX;
    look();
  });
}

bool Reconciler::any_context() const {
  for (const auto& entry : slices_) {
    const Slice& slice = entry.second;
    bool any = false;
    slice.members->for_each([&](uint32_t slot, uint32_t, pid_t) {
      any |= slice.files->state().work[slot].contexts.load(std::memory_order_relaxed) != 0;
    });
    if (any) return true;
  }
  return false;
}

void Reconciler::look() {
  for (auto& [key, slice] : slices_) {
    if (!slice.files->damaged()) slice.members->adopt();
  }
  bool complete = true;
  for (size_t gpu = 0; gpu < context_bytes_.size(); ++gpu) complete &= look_at(static_cast<int>(gpu));
  if (!any_context()) return;
  if (!complete) {
    schedule(retry_ns_);
    retry_ns_ = std::min(2 * retry_ns_, kFirstIntervalNs);
    return;
  }
  schedule(interval_ns_);
  interval_ns_ = std::min(2 * interval_ns_, kLongestIntervalNs);
}

// false: a process whose context was never measured was busy; look again soon.
bool Reconciler::look_at(int node_gpu) {
  struct Candidate {
    Slice* slice;
    int gpu;
    uint32_t slot, generation;
    pid_t pid;
    limiter::SlotUse before;
  };
  std::vector<Candidate> candidates;
  for (auto& entry : slices_) {
    Slice& slice = entry.second;
    if (slice.files->damaged()) continue;
    for (size_t gpu = 0; gpu < slice.node_gpus.size(); ++gpu) {
      if (slice.node_gpus[gpu] != node_gpu) continue;
      slice.members->for_each([&](uint32_t slot, uint32_t generation, pid_t pid) {
        candidates.push_back({&slice, static_cast<int>(gpu), slot, generation, pid,
                              limiter::slot_use(slice.files->state(), static_cast<int>(gpu), slot)});
      });
    }
  }
  if (candidates.empty()) return true;

  std::vector<ProcessMemory> listed;
  if (!nvml_.processes(node_gpu, &listed)) return true;

  bool complete = true;
  for (const Candidate& candidate : candidates) {
    Slice& slice = *candidate.slice;
    const limiter::SlotUse& use = candidate.before;
    const limiter::SlotUse after = limiter::slot_use(slice.files->state(), candidate.gpu, candidate.slot);
    if (!limiter::was_quiescent(use, after)) {
      complete &= after.floor_bytes == 0;
      continue;
    }
    const ProcessMemory* const process = find(listed, candidate.pid);
    const uint64_t bytes = process != nullptr ? process->used_bytes : 0;

    shm::Shared<uint64_t>& overhead = slice.files->limits().overhead_bytes[candidate.gpu][candidate.slot];
    Measurement& last = slice.measured[{candidate.gpu, candidate.slot}];
    // With pools, what an earlier broker measured is better than a first look.
    if (last.generation != candidate.generation && use.pooled_bytes != 0) {
      last = {candidate.generation, overhead.load(), use.releases};
    }
    last = measure(last, candidate.generation, use, bytes);
    overhead.store(last.overhead_bytes);

    // Listed with memory, and no pool to blur it: the context is there and measured, so its floor is no
    // longer needed.
    if (use.floor_bytes == 0) continue;
    if (bytes == 0 || use.pooled_bytes != 0) {
      complete = false;
      continue;
    }
    const limiter::SlotRef slot = {candidate.slot, candidate.generation};
    complete &= limiter::clear_context_floor(slice.files->state(), candidate.gpu, slot, use.floor_bytes);
    // Only where nothing but a first context was expected.
    const shm::GpuLimits& limits = slice.files->limits().gpus[candidate.gpu];
    if (use.floor_bytes == limits.context_bytes.load()) learn_context(node_gpu, last.overhead_bytes);
  }
  return complete;
}

void Reconciler::learn_context(int node_gpu, uint64_t bytes) {
  bytes = std::clamp(bytes, kLeastContextBytes, kMostContextBytes);
  context_bytes_[node_gpu] = bytes;
  for (auto& [key, slice] : slices_) {
    for (size_t gpu = 0; gpu < slice.node_gpus.size(); ++gpu) {
      if (slice.node_gpus[gpu] == node_gpu) slice.files->limits().gpus[gpu].context_bytes.store(bytes);
    }
  }
}

void Reconciler::bury(uint64_t key, uint32_t slot, pid_t pid) {
  const auto found = slices_.find(key);
  if (found == slices_.end()) return;
  Slice& slice = found->second;
  for (size_t gpu = 0; gpu < slice.node_gpus.size(); ++gpu) {
    slice.measured.erase({static_cast<int>(gpu), slot});
    std::vector<ProcessMemory> listed;
    if (slice.node_gpus[gpu] < 0 || !nvml_.processes(slice.node_gpus[gpu], &listed)) continue;
    const ProcessMemory* const process = find(listed, pid);
    if (process == nullptr || process->used_bytes == 0) continue;
    slice.files->limits().gpus[gpu].orphaned_bytes.fetch_add(process->used_bytes);
    adopt_orphan({key, static_cast<int>(gpu), pid, process->used_bytes});
  }
}

void Reconciler::take_over_orphans(uint64_t key) {
  const Slice& slice = slices_.at(key);
  for (size_t gpu = 0; gpu < slice.node_gpus.size(); ++gpu) {
    shm::Shared<uint64_t>& orphaned = slice.files->limits().gpus[gpu].orphaned_bytes;
    const uint64_t bytes = orphaned.load();
    if (bytes == 0 || slice.node_gpus[gpu] < 0) continue;
    // Whose they are was known to the earlier broker only: any process that is dead and still listed may be
    // it.
    std::vector<ProcessMemory> listed;
    nvml_.processes(slice.node_gpus[gpu], &listed);
    const auto dead = std::find_if(listed.begin(), listed.end(), [](const ProcessMemory& process) {
      return process_start_time(static_cast<pid_t>(process.pid)) == 0;
    });
    if (dead == listed.end()) {
      orphaned.store(0);
    } else {
      adopt_orphan({key, static_cast<int>(gpu), static_cast<pid_t>(dead->pid), bytes});
    }
  }
}

void Reconciler::adopt_orphan(const Orphan& orphan) {
  orphans_.push_back(orphan);
  if (orphans_scheduled_) return;
  orphans_scheduled_ = true;
  loop_.call_at(now_ns() + kOrphanIntervalNs, [this] { look_for_orphans(); });
}

void Reconciler::look_for_orphans() {
  std::map<int, std::vector<ProcessMemory>> listed;  // by GPU of the node
  std::erase_if(orphans_, [&](const Orphan& orphan) {
    Slice& slice = slices_.at(orphan.key);
    const int node_gpu = slice.node_gpus[orphan.gpu];
    if (!listed.contains(node_gpu) && !nvml_.processes(node_gpu, &listed[node_gpu])) {
      listed.erase(node_gpu);
      return false;
    }
    if (find(listed[node_gpu], orphan.pid) != nullptr) return false;
    slice.files->limits().gpus[orphan.gpu].orphaned_bytes.fetch_sub(orphan.bytes);
    return true;
  });
  orphans_scheduled_ = !orphans_.empty();
  if (orphans_scheduled_) loop_.call_at(now_ns() + kOrphanIntervalNs, [this] { look_for_orphans(); });
}

}  // namespace broker
