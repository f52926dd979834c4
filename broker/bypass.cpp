// SPDX-License-Identifier: Apache-2.0
#include "broker/bypass.h"

#include "broker/sizes.h"

namespace broker {

shm::BypassPolicy bypass_policy(v1::BypassPolicy policy) {
  switch (policy) {
    case v1::BYPASS_POLICY_BLOCK:
      return shm::kBypassBlock;
    case v1::BYPASS_POLICY_KILL:
      return shm::kBypassKill;
    default:
      return shm::kBypassReport;
  }
}

v1::BypassPolicy bypass_policy(shm::BypassPolicy policy) {
  switch (policy) {
    case shm::kBypassBlock:
      return v1::BYPASS_POLICY_BLOCK;
    case shm::kBypassKill:
      return v1::BYPASS_POLICY_KILL;
    default:
      return v1::BYPASS_POLICY_REPORT;
  }
}

const char* policy_name(shm::BypassPolicy policy) {
  switch (policy) {
    case shm::kBypassBlock:
      return "block";
    case shm::kBypassKill:
      return "kill";
    default:
      return "report";
  }
}

void charge_unattached(shm::Limits& limits, const std::vector<int>& node_gpus,
                       const std::vector<Bypass>& bypasses) {
  for (size_t gpu = 0; gpu < node_gpus.size(); ++gpu) {
    uint64_t bytes = 0;
    for (const Bypass& bypass : bypasses) {
      if (bypass.kind == Bypass::Kind::kNeverAttached && bypass.node_gpu == node_gpus[gpu])
        bytes += bypass.bytes;
    }
    const uint64_t before = limits.gpus[gpu].unattached_bytes.exchange(bytes);
    limits.gpus[gpu].orphaned_bytes.fetch_add(bytes - before);  // modulo 2^64
  }
}

void describe(const Bypass& bypass, v1::Bypass* description) {
  description->set_pid(static_cast<uint32_t>(bypass.pid));
  description->set_name(bypass.name);
  description->set_attached(bypass.kind == Bypass::Kind::kHoldsMore);
  description->set_gpu(static_cast<uint32_t>(bypass.node_gpu));
  description->set_bytes(bypass.bytes);
}

std::string in_words(const Bypass& bypass) {
  const std::string who = "process " + std::to_string(bypass.pid) + " (" + bypass.name + ")";
  const std::string where = " on GPU " + std::to_string(bypass.node_gpu);
  return bypass.kind == Bypass::Kind::kNeverAttached
             ? who + " holds " + format_bytes(bypass.bytes) + where + " and never attached"
             : who + " holds " + format_bytes(bypass.bytes) + where + " more than it admits to";
}

}  // namespace broker
