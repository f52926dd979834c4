// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/log.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

namespace sim {
namespace {

bool environment_flag(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && value[0] != '\0' && value[0] != '0';
}

}  // namespace

void report_unsimulated(const char* what) {
  static std::mutex& mutex = *new std::mutex;
  static std::set<std::string>& said = *new std::set<std::string>;
  {
    std::lock_guard lock(mutex);
    if (!said.insert(what).second) return;
  }
  const bool strict = environment_flag("SIMGPU_STRICT");
  if (strict || !environment_flag("SIMGPU_QUIET")) fprintf(stderr, "simgpu: %s is not simulated\n", what);
  if (strict) abort();
}

}  // namespace sim
