// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "broker/api/cuslice.grpc.pb.h"
#include "broker/run_directory.h"
#include "broker/status.h"

namespace ctl {

namespace v1 = cuslice::broker::v1;
using broker::Failure;
using broker::Status;

// Talks to the broker of a run directory. Failure::kNoBroker: none answers there; kSystem: one may be
// there, but cannot be asked. Every call ends within seconds.
class Client {
 public:
  explicit Client(const broker::RunDirectory& run);

  Status get_node(v1::Node* node);
  Status prepare(const v1::PrepareSliceRequest& request, v1::Slice* slice);
  Status release(const std::string& id, v1::ReleaseSliceResponse* response);
  Status update(const v1::UpdateSliceRequest& request, v1::Slice* slice);
  // Also brings the accounts in the slices' shared memory up to date.
  Status list(v1::ListSlicesResponse* response);
  Status explain_time(const std::string& id, v1::ExplainTimeResponse* response);

 private:
  template <typename Call>
  Status call(Call call);

  const std::string socket_;
  std::unique_ptr<v1::Broker::Stub> stub_;
};

}  // namespace ctl
