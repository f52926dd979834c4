// SPDX-License-Identifier: Apache-2.0
#include "sim/locked_device.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace sim {
namespace {

constexpr uint64_t kSweepEveryNs = 1'000'000;

}  // namespace

uint64_t clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ull + now.tv_nsec;
}

Node::LockedDevice::LockedDevice(Node& node, int index, Sweep sweep)
    : index(index),
      device(node.file_->devices[index]),
      engine(*node.file_, index, node.model_->sm_count),
      journal(engine.journal()) {
  node.lives_.self();  // at its first call it may have to ask the host: not with the lock held
  const bool holder_died = pthread_mutex_lock(&device.lock) == EOWNERDEAD;
  if (holder_died) {
    node.recover(*this);
    pthread_mutex_consistent(&device.lock);
  }
  // The clock is read with the lock held, so that the device's time is never ahead of it.
  const uint64_t now_ns = clock_ns();
  engine.advance(now_ns);
  bool is_due = holder_died || sweep == Sweep::kNow;
  if (!is_due && now_ns - device.swept_ns >= kSweepEveryNs) {
    is_due = sweep == Sweep::kIfDue || others_run(node);
  }
  if (is_due) {
    device.swept_ns = now_ns;
    node.sweep(*this);
  }
}

Node::LockedDevice::~LockedDevice() {
  engine.commit();
  pthread_mutex_unlock(&device.lock);
}

void Node::LockedDevice::wake_sleepers() {
  device.wake.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &device.wake, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

bool Node::LockedDevice::others_run(const Node& node) const {
  if (device.ready_head) return true;
  return device.current && !node.is_ours(node.file_->contexts[device.current - 1]);
}

}  // namespace sim
