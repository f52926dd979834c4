// SPDX-License-Identifier: Apache-2.0
#include "broker/wishes.h"

#include <algorithm>
#include <utility>

#include "shm/layout.h"

namespace broker {

bool is_valid_id(const std::string& id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !id.empty() && id.size() < shm::kSliceIdBytes && id[0] != '.' &&
         std::all_of(id.begin(), id.end(), allowed);
}

Status check_amount(const v1::Memory& memory, std::optional<MemoryAmount>* amount) {
  switch (memory.amount_case()) {
    case v1::Memory::kBytes:
      if (memory.bytes() == 0 || memory.bytes() > shm::kLedgerBytesMask) {
        return fail(Failure::kInvalid, "memory is " + std::to_string(memory.bytes()) +
                                           " bytes: it must be above 0 and below 256 TiB");
      }
      *amount = {.bytes = memory.bytes(), .percent = 0};
      return {};
    case v1::Memory::kPercent:
      if (!(memory.percent() > 0 && memory.percent() <= 100)) {
        return fail(Failure::kInvalid, "a percentage of memory must be above 0 and at most 100");
      }
      *amount = {.bytes = 0, .percent = memory.percent()};
      return {};
    case v1::Memory::AMOUNT_NOT_SET:
      break;
  }
  amount->reset();
  return {};
}

Status read_wish(const v1::PrepareSliceRequest& request, Wish* wish) {
  for (const v1::GpuWish& gpu : request.gpus()) {
    GpuWish gpu_wish = {.gpu = gpu.gpu(), .memory = std::nullopt};
    if (Status status = check_amount(gpu.memory(), &gpu_wish.memory); !status.ok()) return status;
    wish->gpus.push_back(std::move(gpu_wish));
  }
  if (request.compute() != 0) wish->compute_percent = request.compute();
  if (request.compute_limit() != 0) wish->compute_limit_percent = request.compute_limit();
  wish->priority = request.priority();
  return {};
}

Status check_cgroup(const std::string& cgroup) {
  if (cgroup.empty() || (cgroup.size() > 1 && cgroup.front() == '/' && cgroup.back() != '/')) return {};
  return fail(Failure::kInvalid,
              "bad cgroup '" + cgroup +
                  "': give a path as in /proc/<pid>/cgroup, below the root and without a / "
                  "at its end");
}

bool same_wish(v1::PrepareSliceRequest a, v1::PrepareSliceRequest b) {
  a.clear_owner_pid();
  b.clear_owner_pid();
  return a.SerializeAsString() == b.SerializeAsString();
}

}  // namespace broker
