// SPDX-License-Identifier: Apache-2.0
#include "ctl/snapshot.h"

#include <dirent.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "broker/clock.h"
#include "broker/mapping_guard.h"
#include "broker/nvml.h"
#include "limiter/ledger.h"
#include "shm/counters.h"
#include "shm/segment.h"

namespace ctl {
namespace {

std::string text_of(const char* bytes, size_t size) { return printable({bytes, strnlen(bytes, size)}); }

std::string condition_of(const shm::Limits& limits, bool waiting) {
  const uint32_t flags = limits.header.flags.load();
  // Blocked by policy is as good as quarantined, but for the reason.
  if ((flags & shm::kQuarantined) && (flags & shm::kBypassed)) return "blocked: bypassed";
  if (flags & shm::kQuarantined) return "quarantined";
  if (flags & shm::kBypassed) return "bypassed";
  if (flags & shm::kDraining) return "draining";
  switch (limits.gate.mode.load()) {
    case shm::kOpen:
      return "open";
    case shm::kTurn:
      return "turn";
    case shm::kBlocked:
      return "blocked";
    default:
      return waiting ? "waits" : "idle";
  }
}

MemoryView read_memory(const shm::Limits& limits, const shm::State& state, int gpu, uint32_t slot) {
  const limiter::SlotUse use = limiter::slot_use(state, gpu, slot);
  const uint64_t charged = limiter::slot_charge(limits, state, gpu, slot);
  const uint64_t overhead = charged - std::min(charged, use.held_bytes);
  return {.charged_bytes = charged,
          .held_bytes = charged - overhead,
          .pooled_bytes = std::min(use.pooled_bytes, charged - overhead),
          .overhead_bytes = overhead,
          .estimated = use.floor_bytes != 0};
}

void read_processes(const shm::Limits& limits, const shm::State& state, SliceView* view) {
  const uint32_t slots = std::min<uint32_t>(state.header.slots_high.load(), shm::kMaxSlots);
  for (uint32_t slot = 0; slot < slots; ++slot) {
    const uint32_t owner = state.slots[slot].owner.load();
    if (shm::slot_state(owner) == shm::kSlotFree) continue;
    ProcessView process;
    if (limits.slots[slot].generation.load() == shm::slot_generation(owner)) {
      process.host_pid = limits.slots[slot].host_pid.load();
    }
    process.own_pid = shm::slot_pid(state.slots[slot], owner);
    char name[shm::kNameBytes];
    shm::slot_name(state.slots[slot], owner, name);
    process.name = text_of(name, sizeof name);
    for (size_t gpu = 0; gpu < view->gpus.size(); ++gpu) {
      process.memory.push_back(read_memory(limits, state, static_cast<int>(gpu), slot));
    }
    process.contexts = state.work[slot].contexts.load();
    process.waiting = state.work[slot].waiting.load();
    process.outstanding = state.work[slot].outstanding.load() != 0;
    view->processes.push_back(std::move(process));
  }
}

void read_refusals(const shm::State& state, SliceView* view) {
  std::vector<std::pair<uint64_t, RefusalView>> found;
  for (const shm::Refusal& refusal : state.refusals) {
    const uint64_t sequence = refusal.sequence.load(std::memory_order_acquire);
    if (sequence == 0) continue;
    RefusalView copy = {.time_ns = refusal.time_ns,
                        .request_bytes = refusal.request_bytes,
                        .used_bytes = refusal.used_bytes,
                        .quota_bytes = refusal.quota_bytes,
                        .overhead_bytes = refusal.overhead_bytes,
                        .peer_pooled_bytes = refusal.peer_pooled_bytes,
                        .gpu = refusal.gpu,
                        .own_pid = refusal.pid,
                        .name = text_of(refusal.name, sizeof refusal.name),
                        .function = text_of(refusal.function, sizeof refusal.function)};
    // Written anew meanwhile: a mix of two.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (refusal.sequence.load(std::memory_order_relaxed) != sequence) continue;
    found.emplace_back(sequence, std::move(copy));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [sequence, refusal] : found) view->refusals.push_back(std::move(refusal));
}

void read_unknown_functions(const shm::State& state, SliceView* view) {
  for (const shm::UnknownFunction& function : state.unknown) {
    if (function.hash.load(std::memory_order_acquire) == 0) continue;
    std::string name = text_of(function.name, sizeof function.name);
    if (!name.empty()) view->unknown_functions.push_back(std::move(name));  // else it is still being written
  }
  std::sort(view->unknown_functions.begin(), view->unknown_functions.end());
}

// A slice without work has no newer ones; what they say of the last second is wrong then.
void read_rates(const shm::Share& share, SliceView* view) {
  constexpr uint64_t kFreshSeconds = 3;
  const uint64_t at_s = share.rates_at_s.load(std::memory_order_acquire);
  view->rates_known = at_s != 0 && view->sampled_ns / 1'000'000'000 <= at_s + kFreshSeconds;
  if (!view->rates_known) return;
  const uint64_t received = share.received_rates.load(std::memory_order_relaxed);
  const uint64_t wanted = share.wanted_rates.load(std::memory_order_relaxed);
  for (int window = 0; window < shm::kRateWindows; ++window) {
    view->received_rates[window] = shm::rate(received, window) / 100.0;
    view->wanted_rates[window] = shm::rate(wanted, window) / 100.0;
  }
}

void copy_out(const shm::Limits& limits, const shm::State& state, SliceView* view) {
  view->sampled_ns = broker::now_ns();
  view->id = text_of(limits.header.slice_id, sizeof limits.header.slice_id);
  for (uint32_t gpu = 0; gpu < std::min<uint32_t>(limits.header.gpu_count, shm::kMaxGpus); ++gpu) {
    const limiter::Usage usage = limiter::usage(limits, state, static_cast<int>(gpu));
    view->gpus.push_back(
        {.uuid = broker::format_uuid(limits.gpus[gpu].uuid),
         .quota_bytes = usage.quota_bytes,
         .held_bytes = usage.held_bytes,
         .overhead_bytes = usage.overhead_bytes,
         .orphaned_bytes = usage.orphaned_bytes,
         .unattached_bytes = std::min(limits.gpus[gpu].unattached_bytes.load(), usage.orphaned_bytes)});
  }
  const shm::Share& share = limits.share;
  view->compute_percent = share.compute_percent.load();
  view->compute_limit_percent = share.compute_limit_percent.load();
  view->priority = share.priority.load();
  view->held_ns = share.held_ns.load();
  view->waited_ns = share.waited_ns.load();
  view->turns = share.turns.load();
  view->overruns = share.overruns.load();
  read_rates(share, view);
  view->open = limits.gate.mode.load() == shm::kOpen;
  view->broker_pid = limits.heartbeat.broker_pid.load();
  read_processes(limits, state, view);
  const bool waiting = std::any_of(view->processes.begin(), view->processes.end(),
                                   [](const ProcessView& process) { return process.waiting != 0; });
  view->condition = condition_of(limits, waiting);
  read_refusals(state, view);
  read_unknown_functions(state, view);
  for (const shm::CounterLabel& label : shm::kCounterLabels) {
    view->counters.push_back({label.name, label.meaning, state.counters[label.counter].load()});
  }
}

}  // namespace

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text;
}

broker::Status read_slice(const std::string& directory, SliceView* view) {
  const shm::Limits* limits = nullptr;
  const shm::State* state = nullptr;
  shm::AttachResult result = shm::attach_limits(directory.c_str(), &limits);
  if (result != shm::AttachResult::kReady) {
    return broker::fail(
        result == shm::AttachResult::kNotThere ? broker::Failure::kNotFound : broker::Failure::kSystem,
        directory + "/limits: " + shm::describe(result));
  }
  result = shm::attach_state_read_only(directory.c_str(), &state);
  if (result != shm::AttachResult::kReady) {
    shm::detach(limits);
    return broker::fail(broker::Failure::kSystem, directory + "/state: " + shm::describe(result));
  }
  view->directory = directory;
  bool damaged;
  {
    const broker::MappingGuard limits_guard(const_cast<shm::Limits*>(limits), sizeof *limits);
    const broker::MappingGuard state_guard(const_cast<shm::State*>(state), sizeof *state);
    copy_out(*limits, *state, view);
    damaged = limits_guard.damaged() || state_guard.damaged();
  }
  shm::detach(limits);
  shm::detach(state);
  return damaged
             ? broker::fail(broker::Failure::kSystem, directory + ": a file of it was cut while it was read")
             : broker::Status();
}

std::vector<SliceView> read_slices(const broker::RunDirectory& run, std::vector<std::string>* problems) {
  std::vector<SliceView> slices;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(run.slices().c_str()), closedir);
  while (const dirent* entry = directory != nullptr ? readdir(directory.get()) : nullptr) {
    if (entry->d_name[0] == '.') continue;
    SliceView view;
    const broker::Status status = read_slice(run.slice(entry->d_name), &view);
    if (status.ok()) {
      slices.push_back(std::move(view));
    } else if (status.failure != broker::Failure::kNotFound) {  // not: removed since
      problems->push_back(status.text);
    }
  }
  std::sort(slices.begin(), slices.end(), [](const SliceView& a, const SliceView& b) { return a.id < b.id; });
  return slices;
}

double received_percent(const SliceView& before, const SliceView& after) {
  if (after.sampled_ns <= before.sampled_ns || after.held_ns < before.held_ns) return -1;
  return 100.0 * static_cast<double>(after.held_ns - before.held_ns) /
         static_cast<double>(after.sampled_ns - before.sampled_ns);
}

}  // namespace ctl
