// SPDX-License-Identifier: Apache-2.0
#include "ctl/slice_json.h"

#include <nlohmann/json.hpp>

namespace ctl {
namespace {

nlohmann::json to_json(const GpuView& gpu) {
  return {{"uuid", gpu.uuid},
          {"quota_bytes", gpu.quota_bytes},
          {"used_bytes", gpu.used_bytes()},
          {"held_bytes", gpu.held_bytes},
          {"overhead_bytes", gpu.overhead_bytes},
          {"orphaned_bytes", gpu.orphaned_bytes},
          {"free_bytes", gpu.free_bytes()},
          {"over_quota_bytes", gpu.over_bytes()}};
}

nlohmann::json to_json(const MemoryView& memory) {
  return {{"charged_bytes", memory.charged_bytes},
          {"held_bytes", memory.held_bytes},
          {"pooled_bytes", memory.pooled_bytes},
          {"overhead_bytes", memory.overhead_bytes},
          {"estimated", memory.estimated}};
}

nlohmann::json to_json(const ProcessView& process) {
  nlohmann::json json = {{"pid", process.host_pid},
                         {"own_pid", process.own_pid},
                         {"name", process.name},
                         {"charged_bytes", nlohmann::json::array()},
                         {"memory", nlohmann::json::array()},
                         {"contexts", process.contexts},
                         {"waiting", process.waiting}};
  for (const MemoryView& memory : process.memory) {
    json["charged_bytes"].push_back(memory.charged_bytes);
    json["memory"].push_back(to_json(memory));
  }
  return json;
}

}  // namespace

nlohmann::json to_json(const RefusalView& refusal) {
  return {{"time_ns", refusal.time_ns},
          {"pid", refusal.own_pid},
          {"name", refusal.name},
          {"function", refusal.function},
          {"gpu", refusal.gpu},
          {"request_bytes", refusal.request_bytes},
          {"used_bytes", refusal.used_bytes},
          {"quota_bytes", refusal.quota_bytes},
          {"overhead_bytes", refusal.overhead_bytes},
          {"peer_pooled_bytes", refusal.peer_pooled_bytes}};
}

nlohmann::json to_json(const SliceView& slice) {
  nlohmann::json json = {{"id", slice.id},
                         {"directory", slice.directory},
                         {"compute", slice.compute_percent},
                         {"compute_limit", slice.compute_limit_percent},
                         {"priority", slice.priority != 0},
                         {"state", slice.condition},
                         {"held_ns", slice.held_ns},
                         {"waited_ns", slice.waited_ns},
                         {"turns", slice.turns},
                         {"overruns", slice.overruns},
                         {"gpus", nlohmann::json::array()},
                         {"processes", nlohmann::json::array()},
                         {"counters", nlohmann::json::object()},
                         {"unknown_functions", slice.unknown_functions}};
  if (slice.rates_known) {
    for (int window = 0; window < shm::kRateWindows; ++window) {
      const std::string seconds = std::to_string(shm::kRateWindowsS[window]);
      json["received_percent"][seconds] = slice.received_rates[window];
      json["wanted_percent"][seconds] = slice.wanted_rates[window];
    }
  }
  for (const GpuView& gpu : slice.gpus) json["gpus"].push_back(to_json(gpu));
  for (const ProcessView& process : slice.processes) json["processes"].push_back(to_json(process));
  for (const CounterView& counter : slice.counters) json["counters"][counter.name] = counter.value;
  return json;
}

}  // namespace ctl
