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

// Of the last minute: what it asked for, what it got, and whose doing the rest is.
void explain_rates(const SliceView& slice) {
  if (slice.open) {
    std::cout << "  shares its GPU with no other slice and has no cap: nothing holds its launches back\n";
    return;
  }
  if (!slice.rates_known) {
    std::cout << "  nothing to do in the last seconds, or no broker that measures\n";
    return;
  }
  Table table({{"  OVER THE LAST"}, {"HAD WORK/%", kRight}, {"RECEIVED/%", kRight}});
  for (int window = 0; window < shm::kRateWindows; ++window) {
    table.add({"  " + std::to_string(shm::kRateWindowsS[window]) + " s",
               format_percent(slice.wanted_rates[window]), format_percent(slice.received_rates[window])});
  }
  std::cout << table.text();
  constexpr int kMinute = shm::kRateWindows - 1;
  const double wanted = slice.wanted_rates[kMinute], received = slice.received_rates[kMinute];
  std::cout << "  for " << format_percent(100 - wanted)
            << " % of the time its programs had nothing for the GPU; for "
            << format_percent(wanted > received ? wanted - received : 0)
            << " % they had and waited for others, for its cap, or between kernels\n";
}

}  // namespace

void explain_time(const SliceView& slice) {
  std::cout << "\nGPU time: " << slice.compute_percent << " % guaranteed, at most "
            << slice.compute_limit_percent << " %" << (slice.priority ? ", latency class" : "")
            << "; the gate is " << slice.condition << "\n"
            << "  held " << format_seconds(slice.held_ns) << " in " << slice.turns << " turns, "
            << slice.overruns << " of them more than a quarter of a quantum too long\n"
            << "  waited " << format_seconds(slice.waited_ns) << " for turns\n";
  explain_rates(slice);
  if (slice.processes.empty()) return;
  Table table({{"  PID"}, {"NAME"}, {"CONTEXTS", kRight}, {"WAITING", kRight}, {"WORK"}});
  for (const ProcessView& process : slice.processes) {
    table.add({"  " + name_of(process), process.name, std::to_string(process.contexts),
               std::to_string(process.waiting), process.outstanding ? "under way" : ""});
  }
  std::cout << "\n" << table.text();
}

}  // namespace ctl
