// SPDX-License-Identifier: Apache-2.0
//
// What the slice gets of the GPU's time.
#include <iostream>

#include "ctl/explain.h"
#include "ctl/table.h"

namespace ctl {
namespace {

constexpr auto kRight = Table::Align::kRight;

std::string format_seconds(uint64_t ns) {
  char text[32];
  snprintf(text, sizeof text, "%.2f s", static_cast<double>(ns) / 1e9);
  return text;
}

}  // namespace

void explain_time(const SliceView& slice) {
  std::cout << "\nGPU time: " << slice.compute_percent << " % guaranteed, at most "
            << slice.compute_limit_percent << " %" << (slice.priority ? ", latency class" : "")
            << "; the gate is " << slice.condition << "\n"
            << "  held " << format_seconds(slice.held_ns) << " in " << slice.turns << " turns, "
            << slice.overruns << " of them more than a quarter of a quantum too long\n"
            << "  waited " << format_seconds(slice.waited_ns) << " for turns\n";
  if (slice.processes.empty()) return;
  Table table({{"  PID"}, {"NAME"}, {"CONTEXTS", kRight}, {"WAITING", kRight}, {"WORK"}});
  for (const ProcessView& process : slice.processes) {
    table.add({"  " + name_of(process), process.name, std::to_string(process.contexts),
               std::to_string(process.waiting), process.outstanding ? "under way" : ""});
  }
  std::cout << "\n" << table.text();
}

}  // namespace ctl
