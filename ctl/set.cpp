// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "broker/bypass.h"
#include "ctl/client.h"
#include "ctl/commands.h"
#include "ctl/snapshot.h"

namespace ctl {

int set(const broker::RunDirectory& directory, const std::string& slice, const SliceOptions& options) {
  v1::UpdateSliceRequest request;
  request.set_id(slice);
  if (options.memory) {
    if (options.memory->bytes != 0) {
      request.mutable_memory()->set_bytes(options.memory->bytes);
    } else {
      request.mutable_memory()->set_percent(options.memory->percent);
    }
  }
  request.set_compute(options.compute_percent.value_or(0));
  request.set_compute_limit(options.compute_limit_percent.value_or(0));
  if (options.priority) request.set_priority(*options.priority);
  if (options.bypass) request.set_bypass(broker::bypass_policy(*options.bypass));

  v1::Slice changed;
  if (Status status = Client(directory).update(request, &changed); !status.ok()) return report(status);
  std::cout << changed.id() << ":";
  for (const v1::SliceGpu& gpu : changed.gpus()) {
    std::cout << " GPU " << gpu.index() << " " << broker::format_bytes(gpu.quota_bytes()) << ",";
  }
  std::cout << " compute " << changed.compute() << " %, at most " << changed.compute_limit() << " %"
            << (changed.priority() ? ", priority" : "");
  if (options.bypass) std::cout << ", bypass: " << broker::policy_name(*options.bypass);
  std::cout << "\n";
  SliceView now;
  if (!read_slice(directory.slice(slice), &now).ok()) return 0;  // released meanwhile
  for (const GpuView& gpu : now.gpus) {
    if (gpu.over_bytes() == 0) continue;
    std::cout << now.id << ": " << broker::format_bytes(gpu.used_bytes()) << " are in use on " << gpu.uuid
              << ": no new memory until " << broker::format_bytes(gpu.over_bytes()) << " were given back\n";
  }
  return 0;
}

}  // namespace ctl
