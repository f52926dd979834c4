// SPDX-License-Identifier: Apache-2.0
#include "broker/backstop.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>

namespace broker {
namespace {

// What a process may have beyond what it admits to and its context: modules, local memory, heaps. Libraries
// with many kernels take hundreds of MiB.
constexpr uint64_t kUnaskedBytes = 1ull << 30;

// A look that compares figures of one moment weighs more than one at a process that was busy.
constexpr int kClearLook = 4;
constexpr int kBlurredLook = 1;
constexpr int kCertain = 8;

}  // namespace

Backstop::Backstop(MarksOfSlices marks_of_slices, std::function<void(uint64_t)> changed)
    : marks_of_slices_(std::move(marks_of_slices)), changed_(std::move(changed)) {}

void Backstop::begin(uint64_t now_ns) {
  now_ns_ = now_ns;
  gpus_looked_at_.clear();
  marks_.reset();
  for (auto& [id, suspicion] : suspicions_) suspicion.seen = false;
}

void Backstop::looked_at(int node_gpu) { gpus_looked_at_.push_back(node_gpu); }

void Backstop::saw_stranger(int node_gpu, const ProcessMemory& process) {
  if (process.used_bytes == 0) return;
  const auto pid = static_cast<pid_t>(process.pid);
  const std::optional<uint64_t> key = slice_of(pid, marks());
  if (!key) return;
  const auto slice =
      std::find_if(marks_->begin(), marks_->end(), [&](const SliceMarks& s) { return s.key == *key; });
  if (std::find(slice->node_gpus.begin(), slice->node_gpus.end(), node_gpu) == slice->node_gpus.end()) return;
  suspect({Bypass::Kind::kNeverAttached, *key, node_gpu, pid, {}, process.used_bytes}, kClearLook);
}

void Backstop::saw_member(const Member& member) {
  Explained& explained = explained_[{member.key, member.node_gpu, member.slot}];
  const uint64_t may_have = member.admitted_bytes + member.context_bytes + kUnaskedBytes;
  if (member.listed_bytes <= may_have) {
    if (member.quiescent) explained = {member.generation, member.listed_bytes, member.admitted_bytes};
    return;
  }
  // More than that may still be the driver's. It is not where the process takes back what it admitted to and
  // the driver has got nothing back, nor where the slice has more than its quota in consequence.
  const bool took_back = member.quiescent && explained.generation == member.generation &&
                         member.admitted_bytes < explained.admitted_bytes &&
                         member.listed_bytes >= explained.listed_bytes;
  if (!took_back && !member.slice_over_quota) return;
  suspect({Bypass::Kind::kHoldsMore,
           member.key,
           member.node_gpu,
           member.pid,
           {},
           member.listed_bytes - member.admitted_bytes - member.context_bytes},
          member.quiescent ? kClearLook : kBlurredLook);
}

void Backstop::suspect(const Bypass& bypass, int weight) {
  Suspicion& suspicion = suspicions_[{bypass.pid, bypass.node_gpu, bypass.kind}];
  const uint64_t start_time = process_start_time(bypass.pid);
  if (suspicion.process.pid == 0 || suspicion.process.start_time != start_time ||
      suspicion.bypass.key != bypass.key) {
    const bool was_certain = suspicion.certain;
    const uint64_t was_of = suspicion.bypass.key;
    std::optional<Process> process = open_process(bypass.pid, start_time);
    // Without it being there: it has ended, and what is listed is what the driver has not cleared yet.
    if (!process) return;
    suspicion = {bypass, std::move(*process), now_ns_};
    suspicion.bypass.name = process_name(bypass.pid);
    if (was_certain) changed_(was_of);
  }
  suspicion.seen = true;
  suspicion.weight += weight;
  suspicion.bypass.bytes = bypass.bytes;
}

bool Backstop::end() {
  std::set<uint64_t> changed;
  bool again = false;
  for (auto it = suspicions_.begin(); it != suspicions_.end();) {
    Suspicion& suspicion = it->second;
    const bool looked = std::find(gpus_looked_at_.begin(), gpus_looked_at_.end(), std::get<1>(it->first)) !=
                        gpus_looked_at_.end();
    if (looked && !suspicion.seen) {
      if (suspicion.certain) changed.insert(suspicion.bypass.key);
      it = suspicions_.erase(it);
      continue;
    }
    if (!suspicion.certain && suspicion.weight >= kCertain && now_ns_ - suspicion.first_ns >= kSecondLookNs) {
      suspicion.certain = true;
    }
    // Also one that is known: how much it has changes, and it ends.
    if (suspicion.certain) changed.insert(suspicion.bypass.key);
    again = true;
    ++it;
  }
  marks_.reset();
  for (const uint64_t key : changed) changed_(key);
  return again;
}

std::vector<Bypass> Backstop::bypasses(uint64_t key) const {
  std::vector<Bypass> found;
  for (const auto& [id, suspicion] : suspicions_) {
    if (suspicion.certain && suspicion.bypass.key == key) found.push_back(suspicion.bypass);
  }
  return found;
}

void Backstop::kill(uint64_t key) const {
  for (const auto& [id, suspicion] : suspicions_) {
    if (!suspicion.certain || suspicion.bypass.key != key) continue;
    syscall(SYS_pidfd_send_signal, suspicion.process.pidfd.get(), SIGKILL, nullptr, 0);
  }
}

void Backstop::forget_slice(uint64_t key) {
  std::erase_if(suspicions_, [&](const auto& entry) { return entry.second.bypass.key == key; });
  std::erase_if(explained_, [&](const auto& entry) { return std::get<0>(entry.first) == key; });
}

std::vector<ProcessMemory> Backstop::unmanaged(const std::vector<ProcessMemory>& strangers) const {
  const std::vector<SliceMarks> slices = marks_of_slices_();
  std::vector<ProcessMemory> found;
  for (const ProcessMemory& process : strangers) {
    const auto pid = static_cast<pid_t>(process.pid);
    if (process_start_time(pid) != 0 && !slice_of(pid, slices)) found.push_back(process);
  }
  return found;
}

const std::vector<SliceMarks>& Backstop::marks() {
  if (!marks_) marks_ = marks_of_slices_();
  return *marks_;
}

}  // namespace broker
