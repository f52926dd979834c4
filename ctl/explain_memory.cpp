// SPDX-License-Identifier: Apache-2.0
//
// Who uses the slice's memory, and what was refused.
#include <algorithm>
#include <ctime>
#include <iostream>

#include "broker/sizes.h"
#include "ctl/explain.h"
#include "ctl/table.h"

namespace ctl {
namespace {

using broker::format_bytes;
constexpr auto kRight = Table::Align::kRight;

std::string format_time(uint64_t realtime_ns) {
  const auto seconds = static_cast<time_t>(realtime_ns / 1'000'000'000);
  tm local = {};
  localtime_r(&seconds, &local);
  char text[32];
  strftime(text, sizeof text, "%F %T", &local);
  return text;
}

// Over the slice's processes.
struct Sums {
  uint64_t pooled_bytes = 0;
  uint64_t estimated_bytes = 0;
};

Sums sum_up(const SliceView& slice, size_t gpu) {
  Sums sums;
  for (const ProcessView& process : slice.processes) {
    const MemoryView& memory = process.memory[gpu];
    sums.pooled_bytes += memory.pooled_bytes;
    if (memory.estimated) sums.estimated_bytes += memory.overhead_bytes;
  }
  return sums;
}

void explain_sums(const GpuView& gpu, const Sums& sums) {
  std::cout << "\nmemory on " << gpu.uuid << ": " << format_bytes(gpu.used_bytes()) << " of "
            << format_bytes(gpu.quota_bytes) << " used, " << format_bytes(gpu.free_bytes()) << " free\n"
            << "  " << format_bytes(gpu.held_bytes) << " taken by programs";
  if (sums.pooled_bytes != 0) std::cout << ", of it " << format_bytes(sums.pooled_bytes) << " in pools";
  std::cout << "\n  " << format_bytes(gpu.overhead_bytes)
            << " taken by the driver for them (contexts, modules)";
  if (sums.estimated_bytes != 0) {
    std::cout << ", of it " << format_bytes(sums.estimated_bytes) << " a guess until it is measured";
  }
  std::cout << "\n";
  if (gpu.unattached_bytes != 0) {
    std::cout << "  " << format_bytes(gpu.unattached_bytes)
              << " of processes that never attached, named below\n";
  }
  if (const uint64_t dead_bytes = gpu.orphaned_bytes - gpu.unattached_bytes; dead_bytes != 0) {
    std::cout << "  " << format_bytes(dead_bytes)
              << " of processes that have ended, which the driver has not given back yet\n";
  }
}

void explain_processes(const SliceView& slice, size_t gpu) {
  Table table({{"  PID"},
               {"NAME"},
               {"MEMORY", kRight},
               {"TAKEN", kRight},
               {"IN POOLS", kRight},
               {"DRIVER'S", kRight}});
  std::vector<const ProcessView*> processes;
  for (const ProcessView& process : slice.processes) {
    if (process.memory[gpu].charged_bytes != 0) processes.push_back(&process);
  }
  if (processes.empty()) return;
  std::stable_sort(processes.begin(), processes.end(), [gpu](const ProcessView* a, const ProcessView* b) {
    return a->memory[gpu].charged_bytes > b->memory[gpu].charged_bytes;
  });
  for (const ProcessView* const process : processes) {
    const MemoryView& memory = process->memory[gpu];
    table.add({"  " + name_of(*process), process->name, format_bytes(memory.charged_bytes),
               format_bytes(memory.held_bytes), format_bytes(memory.pooled_bytes),
               (memory.estimated ? "about " : "") + format_bytes(memory.overhead_bytes)});
  }
  std::cout << "\n" << table.text();
}

// What can be done where a program gets no memory.
void advise(const SliceView& slice, const GpuView& gpu, const Sums& sums) {
  if (gpu.over_bytes() != 0) {
    std::cout << "  over quota by " << format_bytes(gpu.over_bytes())
              << ": no new memory until programs have given that back\n";
  } else if (slice.refusals.empty()) {
    return;
  }
  if (sums.pooled_bytes != 0) {
    std::cout << "  what pools do not use goes back when their program empties them "
                 "(torch.cuda.empty_cache(), cudaMemPoolTrimTo) or ends\n";
  }
  if (gpu.orphaned_bytes != gpu.unattached_bytes) {
    std::cout << "  what ended processes had goes back once nobody has their device files open any more, "
                 "children included\n";
  }
  std::cout << "  for more: cuslicectl set " << slice.id << " --memory SIZE\n";
}

void explain_refusals(const SliceView& slice) {
  if (slice.refusals.empty()) {
    std::cout << "\nno request for memory was refused\n";
    return;
  }
  Table table({{"REFUSED"},
               {"PID"},
               {"NAME"},
               {"FUNCTION"},
               {"ASKED FOR", kRight},
               {"USED", kRight},
               {"DRIVER'S", kRight},
               {"OTHERS' POOLS", kRight},
               {"QUOTA", kRight}});
  for (const RefusalView& refusal : slice.refusals) {
    table.add({format_time(refusal.time_ns), std::to_string(refusal.own_pid), refusal.name, refusal.function,
               format_bytes(refusal.request_bytes), format_bytes(refusal.used_bytes),
               format_bytes(refusal.overhead_bytes), format_bytes(refusal.peer_pooled_bytes),
               format_bytes(refusal.quota_bytes)});
  }
  std::cout << "\n" << table.text();
}

}  // namespace

void explain_memory(const SliceView& slice) {
  for (size_t gpu = 0; gpu < slice.gpus.size(); ++gpu) {
    const Sums sums = sum_up(slice, gpu);
    explain_sums(slice.gpus[gpu], sums);
    advise(slice, slice.gpus[gpu], sums);
    explain_processes(slice, gpu);
  }
  explain_refusals(slice);
}

}  // namespace ctl
