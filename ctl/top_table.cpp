// SPDX-License-Identifier: Apache-2.0
#include "ctl/top_table.h"

#include <algorithm>
#include <cmath>

#include "ctl/table.h"

namespace ctl {
namespace {

constexpr auto kRight = Table::Align::kRight;
constexpr auto kLeft = Table::Align::kLeft;
constexpr size_t kLeastWidth = 80;
constexpr size_t kBarWidth = 10;

std::string per_second(uint64_t before, uint64_t after, double seconds, double scale) {
  if (after < before || seconds <= 0) return "-";
  char text[32];
  snprintf(text, sizeof text, "%.0f", static_cast<double>(after - before) / seconds * scale);
  return text;
}

std::string memory_bar(uint64_t used, uint64_t quota) {
  const double part =
      quota == 0 ? 0 : static_cast<double>(std::min(used, quota)) / static_cast<double>(quota);
  const auto full = static_cast<size_t>(std::lround(part * kBarWidth));
  return "[" + std::string(full, '#') + std::string(kBarWidth - full, '.') + "]";
}

std::string whole_percent(double percent) {
  if (percent < 0) return "-";
  char text[16];
  snprintf(text, sizeof text, "%.0f", percent);
  return text;
}

std::string share_of(const SliceView& slice) {
  return std::to_string(slice.compute_percent) + "/" + std::to_string(slice.compute_limit_percent);
}

struct Column {
  const char* title;
  size_t width;
  Table::Align align;
};
// After the name. One line of 80 columns with it.
constexpr Column kMemoryColumns[] = {{"MEMORY", 13, kRight}, {"", 12, kLeft},      {"SHARE/%", 7, kRight},
                                     {"GOT/%", 5, kRight},   {"WAIT%", 5, kRight}, {"TURN/s", 6, kRight},
                                     {"OVER", 4, kRight},    {"PID", 3, kRight},   {"STATE", 5, kLeft}};
constexpr Column kTimeColumns[] = {{"SHARE/%", 7, kRight}, {"WANT", 4, kRight},    {"10s", 4, kRight},
                                   {"60s", 4, kRight},     {"GOT", 4, kRight},     {"10s", 4, kRight},
                                   {"60s", 4, kRight},     {"WAIT%", 5, kRight},   {"TURN/s", 6, kRight},
                                   {"OVER", 4, kRight},    {"PASS/us", 7, kRight}, {"STATE", 5, kLeft}};

template <size_t count>
std::string line(const Column (&columns)[count], size_t width, const std::string& name,
                 const std::vector<std::string>& cells) {
  size_t fixed = count;
  for (const Column& column : columns) fixed += column.width;
  std::string text = fit(name, std::clamp(width, kLeastWidth, 2 * kLeastWidth) - fixed);
  for (size_t i = 0; i < count; ++i) {
    text += " " + fit(i < cells.size() ? cells[i] : "", columns[i].width, columns[i].align);
  }
  return text;
}

template <size_t count>
std::string head(const Column (&columns)[count], size_t width) {
  std::vector<std::string> titles;
  for (const Column& column : columns) titles.emplace_back(column.title);
  return line(columns, width, "SLICE", titles);
}

// What became of a slice in the interval, as cells.
struct Interval {
  std::string received = "-", waited = "-", turns = "-", overruns = "-", handover = "-";
};

Interval interval_of(const Sample& before, const Sample& now, const SliceView& slice) {
  Interval cells;
  const auto earlier = before.slices.find(slice.id);
  if (earlier == before.slices.end()) return cells;
  const SliceView& then = earlier->second;
  const double seconds = static_cast<double>(slice.sampled_ns - then.sampled_ns) / 1e9;
  cells.received = slice.open ? "all" : format_percent(received_percent(then, slice));
  cells.waited = per_second(then.waited_ns, slice.waited_ns, seconds, 1e-7);
  cells.turns = per_second(then.turns, slice.turns, seconds, 1);
  cells.overruns = std::to_string(slice.overruns - std::min(then.overruns, slice.overruns));
  if (now.handover_ns.contains(slice.id) && slice.turns > then.turns) {
    const uint64_t each_ns = handover_ns_between(before, now, slice.id) / (slice.turns - then.turns);
    cells.handover = std::to_string(each_ns / 1000);
  }
  return cells;
}

void add_memory_lines(const Sample& before, const Sample& now, const SliceView& slice, size_t width,
                      std::vector<std::string>* lines) {
  const Interval interval = interval_of(before, now, slice);
  for (size_t gpu = 0; gpu < slice.gpus.size(); ++gpu) {
    const std::string memory = used_of_quota(slice.gpus[gpu].used_bytes(), slice.gpus[gpu].quota_bytes);
    const std::string bar = memory_bar(slice.gpus[gpu].used_bytes(), slice.gpus[gpu].quota_bytes);
    if (gpu > 0) {
      lines->push_back(line(kMemoryColumns, width, "", {memory, bar}));
      continue;
    }
    lines->push_back(line(kMemoryColumns, width, slice.id,
                          {memory, bar, share_of(slice), interval.received, interval.waited, interval.turns,
                           interval.overruns, std::to_string(slice.processes.size()), slice.condition}));
  }
}

std::string time_line(const Sample& before, const Sample& now, const SliceView& slice, size_t width) {
  const Interval interval = interval_of(before, now, slice);
  std::vector<std::string> cells = {share_of(slice)};
  for (const auto& rates : {slice.wanted_rates, slice.received_rates}) {
    for (int window = 0; window < shm::kRateWindows; ++window) {
      cells.push_back(whole_percent(slice.rates_known ? rates[window] : -1));
    }
  }
  cells.insert(cells.end(),
               {interval.waited, interval.turns, interval.overruns, interval.handover, slice.condition});
  return line(kTimeColumns, width, slice.id, cells);
}

// The greatest first.
double weight(const Sample& before, const SliceView& slice, TopOrder order) {
  const auto earlier = before.slices.find(slice.id);
  const SliceView* const then = earlier == before.slices.end() ? nullptr : &earlier->second;
  switch (order) {
    case TopOrder::kName:
      break;
    case TopOrder::kMemory: {
      double used = 0;
      for (const GpuView& gpu : slice.gpus) used += static_cast<double>(gpu.used_bytes());
      return used;
    }
    case TopOrder::kReceived:
      return then == nullptr ? -1 : slice.open ? 100 : received_percent(*then, slice);
    case TopOrder::kWaited:
      return then == nullptr ? -1
                             : static_cast<double>(slice.waited_ns) - static_cast<double>(then->waited_ns);
  }
  return 0;
}

}  // namespace

uint64_t handover_ns_between(const Sample& before, const Sample& now, const std::string& id) {
  const auto from = before.handover_ns.find(id), to = now.handover_ns.find(id);
  if (from == before.handover_ns.end() || to == now.handover_ns.end()) return 0;
  return to->second - std::min(from->second, to->second);
}

TopOrder next(TopOrder order) {
  return order == TopOrder::kWaited ? TopOrder::kName
                                    : static_cast<TopOrder>(static_cast<unsigned char>(order) + 1);
}

std::vector<std::string> slice_table(const Sample& before, const Sample& now, const TopOptions& options,
                                     size_t width) {
  std::vector<const SliceView*> slices;
  for (const auto& [id, slice] : now.slices) slices.push_back(&slice);
  std::stable_sort(slices.begin(), slices.end(), [&](const SliceView* left, const SliceView* right) {
    return weight(before, *left, options.sort) > weight(before, *right, options.sort);
  });
  std::vector<std::string> lines = {options.time ? head(kTimeColumns, width) : head(kMemoryColumns, width)};
  for (const SliceView* slice : slices) {
    if (options.time) {
      lines.push_back(time_line(before, now, *slice, width));
    } else {
      add_memory_lines(before, now, *slice, width, &lines);
    }
  }
  return lines;
}

// "3.1/10.0GiB": both in the quota's unit.
std::string used_of_quota(uint64_t used, uint64_t quota) {
  const bool gib = quota >= 1ull << 30;
  const double unit = gib ? 1ull << 30 : 1ull << 20;
  char text[32];
  snprintf(text, sizeof text, "%.1f/%.1f%s", static_cast<double>(used) / unit,
           static_cast<double>(quota) / unit, gib ? "GiB" : "MiB");
  return text;
}

}  // namespace ctl
