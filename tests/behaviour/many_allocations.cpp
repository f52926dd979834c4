// SPDX-License-Identifier: Apache-2.0
//
// many_allocations linear|physical COUNT: makes that many small allocations that live at the same time, or
// handles of one granule each, and prints what the host memory of this process grew by for each.
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "behaviour.h"

namespace {

uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kib;
    if (word == "RssAnon:" && status >> kib) return kib * 1024;
  }
  MUST(!"RssAnon in /proc/self/status");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  MUST(argc == 3);
  const bool physical = strcmp(argv[1], "physical") == 0;
  const uint64_t count = argument(argc, argv, 2);
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {start()}};
  std::vector<uint64_t> handles(count, 1);

  const uint64_t before = resident_bytes();
  for (uint64_t& handle : handles) {
    if (physical) {
      CUmemGenericAllocationHandle made;
      OK(cuMemCreate(&made, kGranule, &prop, 0));
      handle = made;
    } else {
      CUdeviceptr pointer;
      OK(cuMemAlloc(&pointer, 512));
      handle = pointer;
    }
  }
  const uint64_t grown = resident_bytes() - before;
  for (const uint64_t handle : handles) OK(physical ? cuMemRelease(handle) : cuMemFree(handle));
  printf("{\"bytes_each\": %.1f}\n", static_cast<double>(grown) / static_cast<double>(count));
  return finish();
}
