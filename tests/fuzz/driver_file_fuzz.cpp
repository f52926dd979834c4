// SPDX-License-Identifier: Apache-2.0
//
// Arbitrary bytes as a driver's library: what `cuslicectl audit` reads of them lies within them, and is told
// in order. Half of the inputs are a small library with some bytes changed, which gets further than noise.
#include <algorithm>

#include "ctl/driver_file.h"
#include "ctl/policies.h"
#include "input.h"
#include "tests/support/small_library.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  std::string bytes;
  if (input.take<uint8_t>() % 2 == 0) {
    bytes.assign(reinterpret_cast<const char*>(data) + (size > 0), size - (size > 0));
  } else {
    const auto shape = input.take<uint8_t>();
    bytes = test::small_library({"cuMemAlloc_v2", "cuMemAlloc_v9", "cuNew", "cudbgApiInit"},
                                {.gnu_hash = shape % 2 != 0, .versions = shape % 4 >= 2});
    while (!input.empty()) {
      const size_t at = input.take<uint16_t>() % bytes.size();
      const auto kind = input.take<uint8_t>();
      if (kind == 0) {
        bytes.resize(at + 1);
      } else {
        bytes[at] = static_cast<char>(input.take<uint8_t>());
      }
    }
  }
  std::vector<std::string> names;
  if (!ctl::read_exports(bytes.data(), bytes.size(), "fuzzed", &names).ok()) return 0;
  HOLDS(std::is_sorted(names.begin(), names.end()));
  HOLDS(std::adjacent_find(names.begin(), names.end()) == names.end());
  const ctl::Audit audit = ctl::audit_exports(names);
  HOLDS(audit.functions.size() + audit.debugger_exports + audit.other_exports == names.size());
  return 0;
}
