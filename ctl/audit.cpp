// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ctl/client.h"
#include "ctl/commands.h"
#include "ctl/driver_file.h"
#include "ctl/explain.h"
#include "ctl/policies.h"
#include "ctl/snapshot.h"
#include "ctl/table.h"

namespace ctl {
namespace {

size_t count(const Audit& audit, Policy policy) {
  return static_cast<size_t>(
      std::count_if(audit.functions.begin(), audit.functions.end(),
                    [policy](const AuditedFunction& function) { return function.policy == policy; }));
}

// What slices have seen: functions that were looked up though the table does not have them, and processes
// past the limits, which only a broker can tell.
struct Seen {
  std::vector<SliceView> slices;
  std::vector<std::string> problems;
  bool broker_answers = false;
  v1::ListSlicesResponse listed;

  std::vector<v1::Bypass> bypasses(const std::string& id) const {
    for (const v1::Slice& slice : listed.slices()) {
      if (slice.id() == id) return {slice.bypasses().begin(), slice.bypasses().end()};
    }
    return {};
  }
};

Seen look(const broker::RunDirectory& directory) {
  Seen seen;
  seen.broker_answers = Client(directory).list(&seen.listed).ok();
  seen.slices = read_slices(directory, &seen.problems);
  return seen;
}

nlohmann::json to_json(const AuditedFunction& function) {
  nlohmann::json json = {{"name", function.name}, {"policy", describe(function.policy).name}};
  if (function.policy == Policy::kUnknown) json["may_pass_limits"] = function.may_pass_limits();
  if (!function.form_of.empty()) {
    json["form_of"] = function.form_of;
    json["form_policy"] = describe(function.form_policy).name;
  }
  return json;
}

void print_json(const std::string& path, const Audit& audit, const Seen& seen) {
  nlohmann::json json = {{"driver", path},
                         {"functions", nlohmann::json::array()},
                         {"counts", nlohmann::json::object()},
                         {"absent", audit.absent},
                         {"debugger_exports", audit.debugger_exports},
                         {"other_exports", audit.other_exports},
                         {"broker_answers", seen.broker_answers},
                         {"problems", seen.problems},
                         {"slices", nlohmann::json::array()}};
  for (const AuditedFunction& function : audit.functions) json["functions"].push_back(to_json(function));
  for (const PolicyName& policy : kPolicyNames) json["counts"][policy.name] = count(audit, policy.policy);
  for (const SliceView& slice : seen.slices) {
    nlohmann::json one = {{"id", slice.id},
                          {"unknown_functions", slice.unknown_functions},
                          {"bypasses", nlohmann::json::array()}};
    for (const v1::Bypass& bypass : seen.bypasses(slice.id)) {
      one["bypasses"].push_back({{"pid", bypass.pid()},
                                 {"name", printable(bypass.name())},
                                 {"gpu", bypass.gpu()},
                                 {"bytes", bypass.bytes()},
                                 {"attached", bypass.attached()}});
    }
    json["slices"].push_back(one);
  }
  std::cout << json.dump(2) << "\n";
}

std::string note_on(const AuditedFunction& function) {
  if (function.policy != Policy::kUnknown) return "";
  if (function.form_of.empty()) return "nothing is known of it";
  return "another form of " + function.form_of + ", which is " + describe(function.form_policy).name;
}

void print_functions(const std::string& path, const Audit& audit) {
  Table functions({{"POLICY"}, {"FUNCTION"}, {""}});
  Table counts({{"FUNCTIONS", Table::Align::kRight}, {"POLICY"}, {""}});
  for (const PolicyName& policy : kPolicyNames) {
    for (const AuditedFunction& function : audit.functions) {
      if (function.policy == policy.policy) {
        functions.add({policy.name, printable(function.name), note_on(function)});
      }
    }
    counts.add({std::to_string(count(audit, policy.policy)), policy.name, policy.meaning});
  }
  std::cout << functions.text() << "\n" << counts.text();
  std::cout << "\n"
            << path << " exports " << audit.functions.size() << " functions of the driver API, "
            << audit.debugger_exports << " of the debugger's, " << audit.other_exports << " others.\n";
  if (!audit.absent.empty()) {
    std::cout << audit.absent.size() << " of the table's functions are not in this driver.\n";
  }
}

void print_slices(const Seen& seen) {
  for (const SliceView& slice : seen.slices) {
    for (const std::string& function : slice.unknown_functions) {
      std::cout << "slice " << slice.id << ": a program looked up " << function
                << ", which the table does not have\n";
    }
    for (const v1::Bypass& bypass : seen.bypasses(slice.id)) {
      std::cout << "slice " << slice.id << ": " << describe_bypass(bypass) << "\n";
    }
  }
  if (!seen.slices.empty() && !seen.broker_answers) {
    std::cout << "No broker answers, and only it can tell of processes past their slice's limits.\n";
  }
}

}  // namespace

int audit(const broker::RunDirectory& directory, const AuditOptions& options) {
  std::string path = options.driver;
  if (path.empty() && open_driver(&path) == nullptr) {
    return report(broker::fail(broker::Failure::kSystem,
                               "the loader finds no libcuda.so.1; give the path of the driver's"));
  }
  std::vector<std::string> exports;
  if (const broker::Status status = read_exports(path, &exports); !status.ok()) return report(status);
  const Audit audit = audit_exports(exports);
  if (audit.functions.empty()) {
    return report(broker::fail(broker::Failure::kInvalid,
                               path + " exports no function of the driver API: is it libcuda.so.1?"));
  }
  if (audit.own_library) {
    return report(broker::fail(broker::Failure::kInvalid,
                               path + " is cuslice's own library; give the path of the driver's"));
  }
  const Seen seen = look(directory);
  if (options.json) {
    print_json(path, audit, seen);
  } else {
    print_functions(path, audit);
    print_slices(seen);
    for (const std::string& problem : seen.problems) std::cerr << "cuslicectl: " << problem << "\n";
  }
  const bool open = std::any_of(audit.functions.begin(), audit.functions.end(),
                                [](const AuditedFunction& function) { return function.may_pass_limits(); });
  return options.strict && open ? 1 : 0;
}

}  // namespace ctl
