// SPDX-License-Identifier: Apache-2.0
#include "broker/members.h"

#include <poll.h>

#include <algorithm>

#include "broker/clock.h"
#include "limiter/ledger.h"

namespace broker {
namespace {

bool is_live(uint32_t owner, uint32_t generation) {
  return owner == shm::slot_owner(shm::kSlotLive, generation);
}

bool has_ended(const Process& process) {
  pollfd poll_fd = {.fd = process.pidfd.get(), .events = POLLIN, .revents = 0};
  return poll(&poll_fd, 1, 0) != 0;
}

// Whether the records are of this pid namespace, as those are that nobody has written yet.
bool claim_records(shm::Shared<uint32_t>& records_namespace) {
  const auto own = static_cast<uint32_t>(own_pid_namespace());
  uint32_t nobodys = 0;
  return records_namespace.compare_exchange_strong(nobodys, own) || nobodys == own;
}

}  // namespace

Members::Members(EventLoop& loop, SliceFiles& files, Events events)
    : loop_(loop),
      files_(files),
      events_(std::move(events)),
      records_are_ours_(claim_records(files.limits().heartbeat.records_namespace)) {}

Members::~Members() {
  for (const auto& [slot, member] : members_) loop_.unwatch(member.watch);
}

shm::AttachStatus Members::attach(Process process, const shm::AttachRequest& request) {
  if (request.version != shm::kVersion) return shm::kAttachWrongVersion;
  if (request.slot >= shm::kMaxSlots || request.generation > 0xffff) return shm::kAttachRefused;
  const uint32_t owner = files_.state().slots[request.slot].owner.load(std::memory_order_acquire);
  if (!is_live(owner, request.generation)) return shm::kAttachRefused;

  if (const auto found = members_.find(request.slot); found != members_.end()) {
    const Member& member = found->second;
    if (member.generation == request.generation && member.process.pid == process.pid) return shm::kAttached;
    // A slot that lives belongs to who is in it. One that a peer has reaped is free for the next.
    if (member.generation == request.generation && !has_ended(member.process)) return shm::kAttachRefused;
    leave(request.slot);
  }
  join(request.slot, request.generation, std::move(process));
  return shm::kAttached;
}

bool Members::adopt(uint64_t grace_ns) {
  bool complete = true;
  NamespaceSearch search;
  const shm::State& state = files_.state();
  const uint32_t slots =
      std::min<uint32_t>(state.header.slots_high.load(std::memory_order_acquire), shm::kMaxSlots);
  for (uint32_t slot = 0; slot < slots; ++slot) {
    const uint32_t owner = state.slots[slot].owner.load(std::memory_order_acquire);
    const uint32_t generation = shm::slot_generation(owner);
    if (members_.contains(slot)) continue;
    const shm::SlotRecord& record = files_.limits().slots[slot];
    const auto recorded_pid = static_cast<pid_t>(record.host_pid.load(std::memory_order_acquire));
    const bool recorded = records_are_ours_ && recorded_pid != 0 &&
                          record.generation.load(std::memory_order_relaxed) == generation;

    if (shm::slot_state(owner) == shm::kSlotLive) {
      std::optional<Process> process;
      if (recorded) {
        process = open_process(recorded_pid, record.start_time.load(std::memory_order_relaxed));
      } else {
        // Nobody there yet: who has taken the slot is about to write itself down, and to attach.
        const uint32_t pid = shm::slot_pid(state.slots[slot], owner);
        if (!is_due(slot, generation, grace_ns)) {
          complete = false;
          continue;
        }
        if (pid == 0) {
          limiter::reap_unwritten_slot(files_.state(), slot, generation);
          continue;
        }
        process = search.find(shm::slot_value(state.slots[slot].pid_namespace, owner), pid);
      }
      if (process) {
        join(slot, generation, std::move(*process));
        continue;
      }
      if (!records_are_ours_ && !sees_all_processes()) continue;
    }
    if (shm::slot_state(owner) != shm::kSlotFree) reap(slot, generation, recorded ? recorded_pid : 0);
  }
  return complete;
}

std::vector<uint32_t> Members::pids() const {
  std::vector<uint32_t> pids;
  for (const auto& [slot, member] : members_) pids.push_back(static_cast<uint32_t>(member.process.pid));
  return pids;
}

bool Members::is_due(uint32_t slot, uint32_t generation, uint64_t grace_ns) {
  if (grace_ns == 0) return true;
  const auto [found, is_new] = newcomers_.try_emplace(slot, Newcomer{generation, now_ns()});
  if (found->second.generation != generation) found->second = {generation, now_ns()};
  return now_ns() - found->second.seen_ns >= grace_ns;
}

void Members::join(uint32_t slot, uint32_t generation, Process process) {
  if (records_are_ours_) {
    shm::SlotRecord& record = files_.limits().slots[slot];
    record.start_time.store(process.start_time, std::memory_order_relaxed);
    record.generation.store(generation, std::memory_order_relaxed);
    record.host_pid.store(static_cast<uint32_t>(process.pid), std::memory_order_release);
  }

  newcomers_.erase(slot);
  const int pidfd = process.pidfd.get();
  Member& member = members_[slot] = {std::move(process), generation, 0};
  member.watch = loop_.watch(pidfd, [this, slot] { leave(slot); });
  events_.joined(slot);
}

void Members::leave(uint32_t slot) {
  const auto found = members_.find(slot);
  if (found == members_.end()) return;
  const Member member = std::move(found->second);
  loop_.unwatch(member.watch);
  members_.erase(found);
  reap(slot, member.generation, member.process.pid);
}

void Members::reap(uint32_t slot, uint32_t generation, pid_t pid) {
  // What the driver still lists is charged as orphaned before the slot's own numbers go: the sum is never too
  // small.
  if (pid != 0) events_.ended(slot, pid);
  shm::Limits& limits = files_.limits();
  for (auto& overhead_of_slot : limits.overhead_bytes) overhead_of_slot[slot].store(0);
  limits.slots[slot].host_pid.store(0, std::memory_order_release);
  limiter::reap_slot(files_.state(), slot, generation);
  events_.reaped();
}

}  // namespace broker
