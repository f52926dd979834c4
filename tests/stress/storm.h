// SPDX-License-Identifier: Apache-2.0
//
// What the storms share: random tenants that are started and killed in a slice, the slice as its files say,
// and the GPU as the driver says. A storm runs on the slice's node but outside of the slice: what NVML tells
// it is not filtered.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "broker/nvml.h"
#include "report.h"
#include "shm/layout.h"

namespace stress {

// Ends this process with status 1.
[[noreturn]] void fail(const std::string& what);

struct Options {
  std::string slice;    // its directory
  std::string preload;  // LD_PRELOAD of its processes
  std::string tenant;   // the program
  uint64_t seed = 1;
  uint64_t amount = 1;  // kills or seconds
};
// `SLICE PRELOAD TENANT SEED AMOUNT`
Options parse(int argc, char** argv, const char* usage);

class Tenant {
 public:
  Tenant(const Options& options, uint64_t seed);
  ~Tenant();  // killed, if it still runs
  Tenant(const Tenant&) = delete;
  Tenant& operator=(const Tenant&) = delete;

  pid_t pid() const { return pid_; }
  const Report& report() const { return *report_; }
  // It has ended by itself: a fault was found, and it has said which on stdout.
  bool ended();
  void pause() const;
  void kill();
  // After kill(). false: it is still there at the deadline.
  bool wait_until(uint64_t deadline_ns);

 private:
  int report_fd_ = -1;
  Report* report_ = nullptr;
  pid_t pid_ = 0;
  bool reaped_ = false;
};

// GPU 0 of the slice, as both sides see it.
class Scene {
 public:
  explicit Scene(const std::string& slice);

  uint64_t quota_bytes() const;
  uint64_t charged_bytes() const;
  // What the GPU has in use beyond what it had when this was made, managed memory included.
  uint64_t used_bytes() const;
  bool lists(pid_t pid) const;
  // Nobody in a slot, nothing charged, nothing in use.
  bool empty() const;
  std::string describe() const;
  // Why cuslice and the driver disagree about the living now, in bytes; nothing asks the broker to look
  // again.
  uint64_t error_bytes() const;

  const shm::State& state() const { return *state_; }

 private:
  std::unique_ptr<broker::Nvml> nvml_;
  const shm::Limits* limits_ = nullptr;
  const shm::State* state_ = nullptr;
  int node_gpu_ = -1;
  uint64_t others_bytes_ = 0;
};

uint64_t now_ns();
void sleep_until(uint64_t time_ns);

}  // namespace stress
