// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "ctl/client.h"
#include "ctl/commands.h"

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

  v1::Slice changed;
  if (Status status = Client(directory).update(request, &changed); !status.ok()) return report(status);
  std::cout << changed.id() << ":";
  for (const v1::SliceGpu& gpu : changed.gpus()) {
    std::cout << " GPU " << gpu.index() << " " << broker::format_bytes(gpu.quota_bytes()) << ",";
  }
  std::cout << " compute " << changed.compute() << " %, at most " << changed.compute_limit() << " %"
            << (changed.priority() ? ", priority" : "") << "\n";
  return 0;
}

}  // namespace ctl
