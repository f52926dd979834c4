// SPDX-License-Identifier: Apache-2.0
#include "ctl/explain.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "ctl/client.h"
#include "ctl/commands.h"
#include "ctl/slice_json.h"

namespace ctl {
namespace {

std::string describe_broker(const Status& asked, const SliceView& slice) {
  if (asked.ok()) return "served by broker " + std::to_string(slice.broker_pid);
  if (asked.failure == Failure::kNoBroker) return "no broker answers: limits hold, each slice paces itself";
  return asked.text;
}

void print_json(const SliceView& slice, const Status& broker, const v1::ExplainTimeResponse& time) {
  nlohmann::json json = to_json(slice);
  json["broker_answers"] = broker.ok();
  json["time"] = to_json(time);
  json["refusals"] = nlohmann::json::array();
  for (const RefusalView& refusal : slice.refusals) json["refusals"].push_back(to_json(refusal));
  std::cout << json.dump(2) << "\n";
}

// What the broker tells of processes past the slice's limits; only it knows them.
void explain_bypasses(const v1::ListSlicesResponse& slices, const std::string& id) {
  for (const v1::Slice& slice : slices.slices()) {
    if (slice.id() != id) continue;
    for (const v1::Bypass& bypass : slice.bypasses()) {
      std::cout << "\nPast the limits: " << describe_bypass(bypass) << "\n";
    }
  }
}

}  // namespace

std::string describe_bypass(const v1::Bypass& bypass) {
  return "process " + std::to_string(bypass.pid()) + " (" + printable(bypass.name()) + ") holds " +
         broker::format_bytes(bypass.bytes()) + " on GPU " + std::to_string(bypass.gpu()) +
         (bypass.attached() ? " more than it admits to"
                            : " and never attached: is it static, or was LD_PRELOAD cleared?");
}

std::string name_of(const ProcessView& process) {
  const std::string pid = process.host_pid != 0 ? std::to_string(process.host_pid) : "?";
  const bool same = process.host_pid == process.own_pid;
  return pid + (same ? "" : " (" + std::to_string(process.own_pid) + " in its container)");
}

int explain(const broker::RunDirectory& directory, const std::string& id, bool json) {
  v1::ListSlicesResponse listed;
  Client client(directory);
  const Status broker = client.list(&listed);
  // What a broker of an older version can't tell is left out.
  v1::ExplainTimeResponse time;
  if (broker.ok() && !client.explain_time(id, &time).ok()) time.clear_windows();
  SliceView slice;
  if (const Status status = read_slice(directory.slice(id), &slice); !status.ok()) {
    return report(status.failure == Failure::kNotFound
                      ? broker::fail(Failure::kNotFound, "no slice '" + id + "' in " + directory.slices())
                      : status);
  }
  if (json) {
    print_json(slice, broker, time);
    return 0;
  }
  std::cout << "slice " << slice.id << " (" << slice.condition << "), " << describe_broker(broker, slice)
            << "\n";
  explain_memory(slice);
  explain_time(slice, time);
  explain_bypasses(listed, id);
  for (const std::string& function : slice.unknown_functions) {
    std::cout << "\nLooked up, but newer than cuslice and so not limited: " << function << "\n";
  }
  for (const CounterView& counter : slice.counters) {
    if (counter.value != 0) std::cout << "\n" << counter.value << " " << counter.meaning << "\n";
  }
  return 0;
}

}  // namespace ctl
