// SPDX-License-Identifier: Apache-2.0
//
// A driver's exports: read out of its file, and judged by the table.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "ctl/driver_file.h"
#include "ctl/policies.h"
#include "tests/support/small_library.h"

namespace {

using ctl::Policy;
using test::small_library;
using Names = std::vector<std::string>;

broker::Status read(const std::string& bytes, Names* names) {
  return ctl::read_exports(bytes.data(), bytes.size(), "test", names);
}

ctl::AuditedFunction judged(const std::string& name) {
  const ctl::Audit audit = ctl::audit_exports({name});
  EXPECT_EQ(audit.functions.size(), 1u) << name;
  return audit.functions.empty() ? ctl::AuditedFunction{} : audit.functions[0];
}

TEST(DriverFile, functions_are_found_by_either_hash_table_and_without_sections) {
  for (const bool gnu_hash : {false, true}) {
    Names names;
    const broker::Status status =
        read(small_library({"cuInit", "cuB", "cuA"}, {.gnu_hash = gnu_hash}), &names);
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_EQ(names, (Names{"cuA", "cuB", "cuInit", "cuOfNoVersion"}));
  }
}

TEST(DriverFile, a_symbol_whose_version_is_local_is_not_exported_and_several_versions_are_one_function) {
  Names names;
  const broker::Status status = read(small_library({"cuInit", "cuInit"}, {.versions = true}), &names);
  ASSERT_TRUE(status.ok()) << status.text;
  EXPECT_EQ(names, Names{"cuInit"});
}

TEST(DriverFile, what_is_no_library_of_this_machine_is_refused) {
  const struct {
    std::string bytes, says;
  } cases[] = {
      {"", "no ELF file"},
      {"\x7f"
       "ELF",
       "no ELF file"},
      {"!<arch>\n", "no ELF file"},
      {std::string(4096, 'x'), "no ELF file"},
      {small_library({"cuInit"}, {.machine = EM_PPC64}), "another machine"},
      {small_library({"cuInit"}, {.type = ET_EXEC}), "no shared library"},
  };
  for (const auto& [bytes, says] : cases) {
    Names names;
    const broker::Status status = read(bytes, &names);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.text.find(says), std::string::npos) << status.text;
    EXPECT_TRUE(names.empty());
  }
}

TEST(DriverFile, a_library_cut_anywhere_is_damaged_and_no_function_is_made_up) {
  const std::string whole = small_library({"cuInit", "cuMemAlloc_v2"}, {.versions = true});
  for (size_t size = 0; size < whole.size(); ++size) {
    Names names;
    const broker::Status status = read(whole.substr(0, size), &names);
    EXPECT_FALSE(status.ok()) << size;
    EXPECT_FALSE(status.text.empty());
  }
}

TEST(DriverFile, a_path_to_no_file_is_refused) {
  for (const char* path : {"/nonexistent/libcuda.so.1", "/", "/dev/null", "/etc/passwd"}) {
    Names names;
    const broker::Status status = ctl::read_exports(path, &names);
    EXPECT_FALSE(status.ok()) << path;
    EXPECT_TRUE(status.text.starts_with(path)) << status.text;
  }
}

TEST(Audit, each_function_of_the_table_has_its_policy) {
  EXPECT_EQ(judged("cuMemAlloc_v2").policy, Policy::kCharge);
  EXPECT_EQ(judged("cuLaunchKernel_ptsz").policy, Policy::kLaunch);
  EXPECT_EQ(judged("cuGetProcAddress_v2").policy, Policy::kLookup);
  EXPECT_EQ(judged("cuDriverGetVersion").policy, Policy::kPass);
  EXPECT_EQ(judged("cuGLCtxCreate_v2").policy, Policy::kOverhead);
  EXPECT_EQ(judged("cuVDPAUCtxCreate").policy, Policy::kOverhead);
  EXPECT_FALSE(judged("cuMemAlloc_v2").may_pass_limits());
}

TEST(Audit, a_new_form_is_known_by_its_relatives) {
  for (const char* name : {"cuMemAlloc_v9", "cuMemAlloc_v2_ptds", "cuMemAlloc_v12_ptsz"}) {
    const ctl::AuditedFunction function = judged(name);
    EXPECT_EQ(function.policy, Policy::kUnknown) << name;
    EXPECT_EQ(function.form_of, "cuMemAlloc") << name;
    EXPECT_EQ(function.form_policy, Policy::kCharge) << name;
    EXPECT_TRUE(function.may_pass_limits()) << name;
  }
  EXPECT_TRUE(judged("cuGLCtxCreate_v9").may_pass_limits());
  EXPECT_FALSE(judged("cuDriverGetVersion_v9").may_pass_limits());
}

TEST(Audit, a_function_that_nobody_knows_may_pass_the_limits) {
  for (const char* name : {"cuMemAllocNew", "cuMemAlloc_v", "cuFrobnicate_v2"}) {
    EXPECT_EQ(judged(name).policy, Policy::kUnknown) << name;
    EXPECT_EQ(judged(name).form_of, "") << name;
    EXPECT_TRUE(judged(name).may_pass_limits()) << name;
  }
}

TEST(Audit, what_is_not_of_the_driver_api_is_counted_apart) {
  const ctl::Audit audit = ctl::audit_exports({"_init", "cuInit", "cublasCreate", "cudbgApiInit", "cuda"});
  EXPECT_EQ(audit.functions.size(), 1u);
  EXPECT_EQ(audit.debugger_exports, 1u);
  EXPECT_EQ(audit.other_exports, 3u);
  EXPECT_FALSE(audit.own_library);
  EXPECT_TRUE(ctl::audit_exports({"cuInit", "dlsym"}).own_library);
  EXPECT_EQ(std::count(audit.absent.begin(), audit.absent.end(), "cuInit"), 0);
  EXPECT_EQ(std::count(audit.absent.begin(), audit.absent.end(), "cuMemAlloc_v2"), 1);
}

}  // namespace
