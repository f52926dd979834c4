// SPDX-License-Identifier: Apache-2.0
//
// A driver's exports against the table of this build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ctl {

// The classes of interpose/driver_api.py, where each one's contract is.
enum class Policy : uint8_t {
  kUnknown,
  kCharge,
  kMeasure,
  kOverhead,
  kRelease,
  kHold,
  kBar,
  kReport,
  kLaunch,
  kLookup,
  kLifecycle,
  kCapture,
  kPass,
};

struct PolicyName {
  Policy policy;
  const char* name;
  const char* meaning;
};
inline constexpr PolicyName kPolicyNames[] = {
    {Policy::kUnknown, "UNKNOWN", "the table does not have it: goes to the driver as it came"},
    {Policy::kCharge, "charged", "takes device memory: within the quota, or refused"},
    {Policy::kMeasure, "measured",
     "makes the driver take memory: charged with an estimate, then with what it is"},
    {Policy::kOverhead, "overhead",
     "takes device memory: not counted before the driver tells, then charged as overhead"},
    {Policy::kRelease, "released", "gives device memory back"},
    {Policy::kHold, "held", "decides how long memory stays charged"},
    {Policy::kBar, "barred", "sends memory to a GPU: not to one that is off limits"},
    {Policy::kReport, "answered", "says how much memory there is: the slice's"},
    {Policy::kLaunch, "gated", "submits work: waits for the slice's turn"},
    {Policy::kLookup, "looked up", "hands out functions: ours"},
    {Policy::kLifecycle, "followed", "begins or ends a process's membership, a context or a stream"},
    {Policy::kCapture, "captured", "begins or ends the capture of a stream"},
    {Policy::kPass, "forwarded", "takes no memory and submits no gated work: one jump to the driver"},
};
const PolicyName& describe(Policy policy);

struct AuditedFunction {
  std::string name;
  Policy policy = Policy::kUnknown;
  // Of an unknown function that is another form (_v3, _ptsz) of one in the table: that one, and its policy.
  std::string form_of;
  Policy form_policy = Policy::kUnknown;

  // Nobody has judged it, and nothing says that it is harmless: it may be a way past the slice.
  bool may_pass_limits() const { return policy == Policy::kUnknown && form_policy != Policy::kPass; }
};

struct Audit {
  std::vector<AuditedFunction> functions;  // each cu* export, by name
  std::vector<std::string> absent;         // in the table, not in this driver
  uint32_t debugger_exports = 0;           // cudbg*: the real library's alone, never ours
  uint32_t other_exports = 0;              // in no way the driver API's
  bool own_library = false;                // what was read is the preloaded library
};

// `exports`: sorted, as read_exports() gives them.
Audit audit_exports(const std::vector<std::string>& exports);

}  // namespace ctl
