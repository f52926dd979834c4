// SPDX-License-Identifier: Apache-2.0
#include "broker/reconcile.h"

#include <algorithm>

#include "broker/clock.h"

namespace broker {
namespace {

constexpr uint64_t kFirstIntervalNs = 1'000'000'000;
constexpr uint64_t kLongestIntervalNs = 30'000'000'000;
constexpr uint64_t kLongestIdleIntervalNs = 600'000'000'000;
constexpr uint64_t kRetryNs = 2'000'000;
constexpr uint64_t kOrphanIntervalNs = 100'000'000;
// Looking for who did not attach goes through /proc, which a crowd that is just attaching must not cause.
constexpr uint64_t kAttachGraceNs = 250'000'000;

constexpr uint64_t kLeastContextBytes = 64ull << 20;
constexpr uint64_t kMostContextBytes = 2ull << 30;

const ProcessMemory* find(const std::vector<ProcessMemory>& processes, pid_t pid) {
  for (const ProcessMemory& process : processes) {
    if (process.pid == static_cast<uint32_t>(pid)) return &process;
  }
  return nullptr;
}

// What the driver is to list for the process, but for what it took unasked.
uint64_t accounted_bytes(const limiter::SlotUse& use) {
  return use.held_bytes - std::min(use.held_bytes, use.managed_bytes);
}

}  // namespace

Measurement measure(const Measurement& last, uint32_t generation, const limiter::SlotUse& use,
                    uint64_t listed_bytes) {
  // What is stored has 48 bits: more must not read as less.
  listed_bytes = std::min(listed_bytes, shm::kLedgerBytesMask);
  const uint64_t accounted = accounted_bytes(use);
  const auto beyond = [&](uint64_t bytes) { return bytes - std::min(bytes, accounted); };
  const uint64_t least = beyond(listed_bytes);
  uint64_t overhead = least;
  if (last.generation == generation && last.overhead_bytes > least) {
    if (use.pooled_bytes != 0) {
      overhead = std::min(last.overhead_bytes, beyond(listed_bytes + use.pooled_bytes));
    } else if (use.releases == last.releases) {
      overhead = last.overhead_bytes;
    }
  }
  Measurement measured = {
      .generation = generation, .overhead_bytes = overhead, .releases = use.releases, .calls = use.calls};
  const uint64_t charged = accounted + overhead;
  if (use.releases != 0) measured.excess_bytes = charged - std::min(charged, listed_bytes);
  return measured;
}

uint64_t next_interval_ns(uint64_t interval_ns, bool anybody_attached) {
  return std::min(2 * interval_ns, anybody_attached ? kLongestIntervalNs : kLongestIdleIntervalNs);
}

Reconciler::Reconciler(EventLoop& loop, const Nvml& nvml, Backstop& backstop)
    : loop_(loop),
      nvml_(nvml),
      backstop_(backstop),
      context_bytes_(nvml.gpus().size(), shm::kGuessedContextBytes) {}

void Reconciler::add(uint64_t key, SliceFiles* files, Members* members, std::vector<int> node_gpus) {
  for (size_t gpu = 0; gpu < node_gpus.size(); ++gpu) {
    if (node_gpus[gpu] < 0) continue;
    uint64_t& known = context_bytes_[node_gpus[gpu]];
    // What an earlier broker has learned.
    if (known == shm::kGuessedContextBytes) known = files->limits().gpus[gpu].context_bytes.load();
  }
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

void Reconciler::look() {
  if (slices_.empty()) return;
  for (auto& [key, slice] : slices_) {
    if (!slice.files->damaged() && !slice.members->adopt(kAttachGraceNs)) schedule(kAttachGraceNs);
  }
  bool complete = true;
  bool any_change = false;
  backstop_.begin(now_ns());
  for (size_t gpu = 0; gpu < context_bytes_.size(); ++gpu) {
    complete &= look_at(static_cast<int>(gpu), &any_change);
  }
  if (backstop_.end()) schedule(Backstop::kSecondLookNs);
  if (!complete) {
    schedule(retry_ns_);
    retry_ns_ = std::min(2 * retry_ns_, kFirstIntervalNs);
    return;
  }
  // What changes is measured every second, so that it is exact soon after it has come to rest.
  if (any_change) interval_ns_ = kFirstIntervalNs;
  schedule(interval_ns_);
  const bool anybody_attached = std::any_of(slices_.begin(), slices_.end(),
                                            [](const auto& entry) { return !entry.second.members->empty(); });
  interval_ns_ = next_interval_ns(interval_ns_, anybody_attached);
}

bool Reconciler::has_gpu(const Slice& slice, int node_gpu) const {
  return std::find(slice.node_gpus.begin(), slice.node_gpus.end(), node_gpu) != slice.node_gpus.end();
}

std::set<uint32_t> Reconciler::attached_pids(int node_gpu) const {
  std::set<uint32_t> pids;
  for (const auto& [key, slice] : slices_) {
    if (!has_gpu(slice, node_gpu)) continue;
    slice.members->for_each([&](uint32_t, uint32_t, pid_t pid) { pids.insert(static_cast<uint32_t>(pid)); });
  }
  return pids;
}

std::vector<ProcessMemory> Reconciler::strangers(int node_gpu) const {
  std::vector<ProcessMemory> listed;
  if (!nvml_.processes(node_gpu, &listed)) return {};
  const std::set<uint32_t> attached = attached_pids(node_gpu);
  std::erase_if(listed, [&](const ProcessMemory& process) { return attached.contains(process.pid); });
  return listed;
}

bool Reconciler::look_at(int node_gpu, bool* any_change) {
  struct Candidate {
    uint64_t key;
    Slice* slice;
    int gpu;
    uint32_t slot, generation;
    pid_t pid;
    limiter::SlotUse before;
  };
  std::vector<Candidate> candidates;
  bool any_slice = false;  // that has the GPU
  for (auto& entry : slices_) {
    Slice& slice = entry.second;
    if (slice.files->damaged()) continue;
    for (size_t gpu = 0; gpu < slice.node_gpus.size(); ++gpu) {
      if (slice.node_gpus[gpu] != node_gpu) continue;
      any_slice = true;
      slice.members->for_each([&](uint32_t slot, uint32_t generation, pid_t pid) {
        candidates.push_back({entry.first, &slice, static_cast<int>(gpu), slot, generation, pid,
                              limiter::slot_use(slice.files->state(), static_cast<int>(gpu), slot)});
      });
    }
  }
  std::vector<ProcessMemory> listed;
  if (!any_slice || !nvml_.processes(node_gpu, &listed)) return true;
  std::map<pid_t, uint64_t> listed_bytes;
  for (const ProcessMemory& process : listed) {
    listed_bytes[static_cast<pid_t>(process.pid)] += process.used_bytes;
  }
  std::map<uint64_t, uint64_t> slice_bytes;  // what is listed for all processes of a slice
  std::set<pid_t> attached;
  for (const Candidate& candidate : candidates) {
    const auto found = listed_bytes.find(candidate.pid);
    if (attached.insert(candidate.pid).second && found != listed_bytes.end())
      slice_bytes[candidate.key] += found->second;
  }
  backstop_.looked_at(node_gpu);
  for (const auto& [pid, bytes] : listed_bytes) {
    if (!attached.contains(pid)) backstop_.saw_stranger(node_gpu, {static_cast<uint32_t>(pid), bytes});
  }

  bool complete = true;
  for (const Candidate& candidate : candidates) {
    Slice& slice = *candidate.slice;
    const limiter::SlotUse& use = candidate.before;
    const limiter::SlotUse after = limiter::slot_use(slice.files->state(), candidate.gpu, candidate.slot);
    const bool quiescent = limiter::was_quiescent(use, after);
    Measurement& last = slice.measured[{candidate.gpu, candidate.slot}];
    *any_change |= last.generation != candidate.generation || last.calls != after.calls;
    const auto found = listed_bytes.find(candidate.pid);
    const uint64_t bytes = found != listed_bytes.end() ? found->second : 0;
    backstop_.saw_member({.key = candidate.key,
                          .node_gpu = node_gpu,
                          .slot = candidate.slot,
                          .generation = candidate.generation,
                          .pid = candidate.pid,
                          .listed_bytes = bytes,
                          .admitted_bytes = std::max(accounted_bytes(use), accounted_bytes(after)),
                          .context_bytes = context_bytes_[node_gpu],
                          .quiescent = quiescent,
                          .slice_over_quota = slice_bytes[candidate.key] >
                                              slice.files->limits().gpus[candidate.gpu].quota_bytes.load()});
    if (!quiescent) {
      limiter::forgive(slice.files->state(), candidate.gpu, candidate.slot, use, 0);
      complete &= after.floor_bytes == 0;
      continue;
    }

    shm::Shared<uint64_t>& overhead = slice.files->limits().overhead_bytes[candidate.gpu][candidate.slot];
    // With pools, what an earlier broker measured is better than a first look.
    if (last.generation != candidate.generation && use.pooled_bytes != 0) {
      last = {.generation = candidate.generation, .overhead_bytes = overhead.load()};
    }
    last = measure(last, candidate.generation, use, bytes);
    overhead.store(last.overhead_bytes);
    limiter::forgive(slice.files->state(), candidate.gpu, candidate.slot, use, last.excess_bytes);

    // Listed with memory: what the floor stood for is there and measured, so it is no longer needed. The call
    // that set it has settled its pools, so they blur that little.
    if (use.floor_bytes == 0) continue;
    if (bytes == 0) {
      complete = false;
      continue;
    }
    const limiter::SlotRef slot = {candidate.slot, candidate.generation};
    complete &= limiter::clear_context_floor(slice.files->state(), candidate.gpu, slot, use.floor_bytes);
    // Only where nothing but a first context was expected, and where there is nothing else.
    if (use.pooled_bytes != 0) continue;
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
