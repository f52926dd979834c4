// SPDX-License-Identifier: Apache-2.0
#include <ctime>
#include <iostream>

#include "ctl/client.h"
#include "ctl/commands.h"
#include "ctl/snapshot.h"
#include "ctl/table.h"

namespace ctl {
namespace {

constexpr auto kRight = Table::Align::kRight;

std::string format_time(uint64_t realtime_ns) {
  const auto seconds = static_cast<time_t>(realtime_ns / 1'000'000'000);
  tm local = {};
  localtime_r(&seconds, &local);
  char text[32];
  strftime(text, sizeof text, "%F %T", &local);
  return text;
}

std::string format_seconds(uint64_t ns) {
  char text[32];
  snprintf(text, sizeof text, "%.2f s", static_cast<double>(ns) / 1e9);
  return text;
}

std::string name_of(const ProcessView& process) {
  const std::string pid = process.host_pid != 0 ? std::to_string(process.host_pid) : "?";
  const bool same = process.host_pid == process.own_pid;
  return pid + (same ? "" : " (" + std::to_string(process.own_pid) + " in its container)");
}

void explain_memory(const SliceView& slice) {
  for (size_t gpu = 0; gpu < slice.gpus.size(); ++gpu) {
    const GpuView& view = slice.gpus[gpu];
    std::cout << "\nmemory on " << view.uuid << ": " << broker::format_bytes(view.used_bytes()) << " of "
              << broker::format_bytes(view.quota_bytes) << " used, "
              << broker::format_bytes(view.free_bytes()) << " free\n"
              << "  " << broker::format_bytes(view.held_bytes) << " taken by programs, "
              << broker::format_bytes(view.overhead_bytes) << " by the driver for them (contexts, modules)\n";
    if (view.orphaned_bytes != 0) {
      std::cout << "  " << broker::format_bytes(view.orphaned_bytes)
                << " of processes that have ended, which the driver has not given back yet\n";
    }
  }
  if (slice.processes.empty()) {
    std::cout << "\nno processes\n";
    return;
  }
  std::vector<Table::Column> columns = {{"PID"}, {"NAME"}};
  for (size_t gpu = 0; gpu < slice.gpus.size(); ++gpu) {
    columns.push_back({slice.gpus.size() == 1 ? "MEMORY" : "MEMORY " + std::to_string(gpu), kRight});
  }
  columns.insert(columns.end(), {{"CONTEXTS", kRight}, {"WAITING", kRight}, {"WORK"}});
  Table table(columns);
  for (const ProcessView& process : slice.processes) {
    std::vector<std::string> row = {name_of(process), process.name};
    for (const uint64_t bytes : process.charged_bytes) row.push_back(broker::format_bytes(bytes));
    row.insert(row.end(), {std::to_string(process.contexts), std::to_string(process.waiting),
                           process.outstanding ? "under way" : ""});
    table.add(std::move(row));
  }
  std::cout << "\n" << table.text();
}

std::string describe_broker(const Status& asked, const SliceView& slice) {
  if (asked.ok()) return "served by broker " + std::to_string(slice.broker_pid);
  if (asked.failure == Failure::kNoBroker) return "no broker answers: limits hold, each slice paces itself";
  return asked.text;
}

void explain_time(const SliceView& slice) {
  std::cout << "\nGPU time: " << slice.compute_percent << " % guaranteed, at most "
            << slice.compute_limit_percent << " %" << (slice.priority ? ", latency class" : "")
            << "; the gate is " << slice.condition << "\n"
            << "  held " << format_seconds(slice.held_ns) << " in " << slice.turns << " turns, "
            << slice.overruns << " of them more than a quarter of a quantum too long\n"
            << "  waited " << format_seconds(slice.waited_ns) << " for turns\n";
}

void explain_refusals(const SliceView& slice) {
  if (slice.refusals.empty()) {
    std::cout << "\nno request for memory was refused\n";
    return;
  }
  Table table(
      {{"REFUSED"}, {"PID"}, {"FUNCTION"}, {"ASKED FOR", kRight}, {"USED", kRight}, {"QUOTA", kRight}});
  for (const RefusalView& refusal : slice.refusals) {
    table.add({format_time(refusal.time_ns), std::to_string(refusal.own_pid), refusal.function,
               broker::format_bytes(refusal.request_bytes), broker::format_bytes(refusal.used_bytes),
               broker::format_bytes(refusal.quota_bytes)});
  }
  std::cout << "\n" << table.text();
}

}  // namespace

int explain(const broker::RunDirectory& directory, const std::string& id) {
  v1::ListSlicesResponse ignored;
  const Status broker = Client(directory).list(&ignored);
  SliceView slice;
  if (const Status status = read_slice(directory.slice(id), &slice); !status.ok()) {
    return report(status.failure == Failure::kNotFound
                      ? broker::fail(Failure::kNotFound, "no slice '" + id + "' in " + directory.slices())
                      : status);
  }
  std::cout << "slice " << slice.id << " (" << slice.condition << "), " << describe_broker(broker, slice)
            << "\n";
  explain_memory(slice);
  explain_time(slice);
  explain_refusals(slice);
  for (const CounterView& counter : slice.counters) {
    if (counter.value != 0) std::cout << "\n" << counter.value << " " << counter.meaning << "\n";
  }
  return 0;
}

}  // namespace ctl
