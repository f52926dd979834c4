// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "broker/event_loop.h"
#include "broker/slices.h"
#include "broker/status.h"

namespace broker {

// The API of api/cuslice.proto on a unix socket that only this user (and root) may open. Its threads hand
// each call to the event loop and wait for it.
class Service {
 public:
  static Status start(const std::string& socket_path, EventLoop& loop, Slices& slices, bool transient,
                      std::unique_ptr<Service>* service);
  // Answers what the loop has still taken; nothing new.
  virtual ~Service() = default;
};

}  // namespace broker
