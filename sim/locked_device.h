// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/engine.h"
#include "sim/layout.h"
#include "sim/node.h"

namespace sim {

// CLOCK_MONOTONIC.
uint64_t clock_ns();

// A device under its lock, whole and at the present. What is done to it lasts from commit() or the end of
// this. What a holder that died had half done is undone, and dead processes are removed when `sweep` says so.
class Node::LockedDevice {
 public:
  LockedDevice(Node& node, int index, Sweep sweep);
  ~LockedDevice();
  LockedDevice(const LockedDevice&) = delete;
  LockedDevice& operator=(const LockedDevice&) = delete;

  // Has those that sleep on the device's `wake` look again. After what makes work be done sooner than
  // reckoned.
  void wake_sleepers();

  const int index;
  Device& device;
  Engine engine;
  Journal& journal;

 private:
  bool others_run(const Node& node) const;
};

}  // namespace sim
