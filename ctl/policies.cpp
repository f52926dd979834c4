// SPDX-License-Identifier: Apache-2.0
#include "ctl/policies.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>

namespace ctl {
namespace {

struct Row {
  const char* name;
  const char* base;
  Policy policy;
};

// By name.
constexpr Row kRows[] = {
#define DRIVER_FUNCTION(index, name, base, policy) {#name, #base, Policy::k##policy},
#include "generated/interpose/functions.inc"
#undef DRIVER_FUNCTION
};

const Row* find_row(std::string_view name) {
  const auto* const found = std::lower_bound(
      std::begin(kRows), std::end(kRows), name,
      [](const Row& row, std::string_view wanted) { return std::string_view(row.name) < wanted; });
  return found != std::end(kRows) && name == found->name ? found : nullptr;
}

// cuMemcpyHtoD_v2_ptds -> cuMemcpyHtoD
std::string_view base_of(std::string_view name) {
  for (const std::string_view twin : {"_ptds", "_ptsz"}) {
    if (name.ends_with(twin)) name.remove_suffix(twin.size());
  }
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  if (digits < name.size() && name.substr(0, digits).ends_with("_v")) name = name.substr(0, digits - 2);
  return name;
}

AuditedFunction judge(const std::string& name) {
  if (const Row* const row = find_row(name)) return {name, row->policy, "", Policy::kUnknown};
  const std::string_view base = base_of(name);
  const auto* const relative =
      std::find_if(std::begin(kRows), std::end(kRows), [base](const Row& row) { return base == row.base; });
  if (relative == std::end(kRows)) return {name, Policy::kUnknown, "", Policy::kUnknown};
  return {name, Policy::kUnknown, relative->base, relative->policy};
}

bool is_driver_function(std::string_view name) {
  return name.size() > 2 && name.starts_with("cu") && isupper(static_cast<unsigned char>(name[2]));
}

}  // namespace

const PolicyName& describe(Policy policy) {
  return *std::find_if(std::begin(kPolicyNames), std::end(kPolicyNames),
                       [policy](const PolicyName& name) { return name.policy == policy; });
}

Audit audit_exports(const std::vector<std::string>& exports) {
  Audit audit;
  for (const std::string& name : exports) {
    if (is_driver_function(name)) {
      audit.functions.push_back(judge(name));
    } else if (name.starts_with("cudbg")) {
      ++audit.debugger_exports;
    } else {
      ++audit.other_exports;
      // The hook of the loader's function: no driver has one.
      audit.own_library |= name == "dlsym";
    }
  }
  for (const Row& row : kRows) {
    if (!std::binary_search(exports.begin(), exports.end(), row.name)) audit.absent.emplace_back(row.name);
  }
  return audit;
}

}  // namespace ctl
