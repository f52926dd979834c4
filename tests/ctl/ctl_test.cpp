// SPDX-License-Identifier: Apache-2.0
//
// cuslicectl as its users run it, on fake GPUs, with empty libraries in place of the preloaded ones.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/broker/node_fixture.h"

namespace {

using test::Child;
using test::eventually;
using test::FakeNode;

struct Result {
  int status;
  std::string output;  // stdout and stderr
};

class CtlTest : public testing::Test {
 protected:
  static std::vector<std::string> command(const std::string& text) {
    return {"/bin/sh", "-c", "exec " + test::test_directory() + "/../cuslicectl " + text + " 2>&1"};
  }
  static std::string run_options() { return "run --lib-dir " + test::test_directory() + "/empty_preloads "; }

  Result ctl(const std::string& text) const {
    Child child(command(text), node_.environment());
    const std::string output = child.read_all();
    return {child.wait(), output};
  }
  nlohmann::json slices() const { return nlohmann::json::parse(ctl("ls --json").output).at("slices"); }
  // A transient broker ends by itself; the test's directory must not go before it.
  void await_end() const {
    EXPECT_TRUE(eventually(6, [&] { return !std::filesystem::exists(node_.run().path()); }));
  }

  FakeNode node_;
};

TEST_F(CtlTest, run_gives_the_exit_status_of_the_command) {
  EXPECT_EQ(ctl(run_options() + "--memory 10GiB -- sh -c 'exit 7'").status, 7);
  EXPECT_EQ(ctl(run_options() + "--memory 10GiB -- sh -c 'kill -9 $$'").status, 128 + SIGKILL);
  EXPECT_EQ(ctl(run_options() + "--memory 10GiB -- /nonexistent").status, 127);
  EXPECT_EQ(ctl(run_options() + "--memory 10GiB -- true").status, 0);
  await_end();
}

TEST_F(CtlTest, run_passes_arguments_and_says_where_the_slice_is) {
  const Result result =
      ctl(run_options() +
          "--memory 25% --name job -- sh -c 'echo \"$CUSLICE_SLICE|$1|$LD_PRELOAD\"' x -- --memory");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_TRUE(result.output.starts_with(node_.run().slice("job") + "|--|")) << result.output;
  EXPECT_NE(result.output.find("libcuslice-cuda.so:"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(node_.run().slice("job")));
  await_end();
}

TEST_F(CtlTest, two_commands_share_the_broker_that_the_first_one_started) {
  std::vector<std::unique_ptr<Child>> children;
  for (const char* name : {"a", "b", "c", "d"}) {
    children.push_back(std::make_unique<Child>(
        command(run_options() + "--memory 10% --compute 10 --name " + name + " -- sleep 1.5"),
        node_.environment()));
  }
  EXPECT_TRUE(eventually(5, [&] { return slices().size() == 4; }));
  for (const auto& child : children) EXPECT_EQ(child->wait(), 0) << child->read_all();
  EXPECT_TRUE(slices().empty());
  await_end();
}

TEST_F(CtlTest, run_passes_signals_on) {
  Child child(
      command(run_options() + "--memory 10GiB -- sh -c 'trap \"exit 42\" TERM; echo ready; while :; do sleep "
                              "0.05; done'"),
      node_.environment());
  ASSERT_EQ(child.read_line(), "ready");
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 42);
  await_end();
}

TEST_F(CtlTest, a_killed_run_leaves_no_slice) {
  {
    Child child(command(run_options() + "--memory 10GiB --name gone -- sleep 60"), node_.environment());
    ASSERT_TRUE(eventually(5, [&] { return std::filesystem::exists(node_.run().slice("gone")); }));
    child.kill_hard();
  }
  EXPECT_TRUE(eventually(1, [&] { return !std::filesystem::exists(node_.run().slice("gone")); }));
  await_end();
}

TEST_F(CtlTest, run_inside_a_slice_is_refused) {
  node_.start_broker();
  const std::string inner = test::test_directory() + "/../cuslicectl " + run_options() + "-- true 2>&1";
  const Result result = ctl(run_options() + "--memory 10GiB -- sh -c '" + inner + "'");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.output.find("inside a slice already"), std::string::npos) << result.output;
}

TEST_F(CtlTest, what_does_not_fit_is_refused_with_what_is_free) {
  node_.start_broker();
  node_.prepare("big", 70ull << 30, 80);
  const Result memory = ctl(run_options() + "--memory 20GiB --compute 20 -- true");
  EXPECT_EQ(memory.status, 1);
  EXPECT_NE(memory.output.find("9.2 GiB and 20 % of compute free"), std::string::npos) << memory.output;
}

TEST_F(CtlTest, bad_values_are_refused_as_usage_errors) {
  for (const char* arguments : {"", "frob", "run", "run --memory 10GX -- true", "run --memory -1GiB -- true",
                                "run --memory '' -- true", "run --compute 0 -- true",
                                "run --compute 101 -- true", "run --compute-limit 1e1 -- true", "set",
                                "set a", "set a --memory x", "top --interval 0", "explain"}) {
    const Result result = ctl(arguments);
    EXPECT_EQ(result.status, 2) << arguments << ": " << result.output;
    EXPECT_FALSE(result.output.empty()) << arguments;
  }
}

TEST_F(CtlTest, ls_works_with_and_without_a_broker) {
  EXPECT_NE(ctl("ls").output.find("no broker answers"), std::string::npos);
  node_.start_broker();
  node_.prepare("job", 10ull << 30, 25, 50);
  const auto tenant = node_.start_tenant("job", {"--hold", std::to_string(2ull << 30)});
  const nlohmann::json job = slices().at(0);
  EXPECT_EQ(job["id"], "job");
  EXPECT_EQ(job["gpus"][0]["quota_bytes"], 10ull << 30);
  EXPECT_EQ(job["gpus"][0]["held_bytes"], 2ull << 30);
  EXPECT_EQ(job["processes"][0]["pid"], tenant->pid());
  EXPECT_EQ(job["compute_limit"], 50);
  node_.kill_broker();
  const Result table = ctl("ls");
  EXPECT_EQ(table.status, 0);
  EXPECT_NE(table.output.find("job"), std::string::npos);
  EXPECT_NE(table.output.find("10 GiB"), std::string::npos);
  EXPECT_NE(table.output.find("no broker answers"), std::string::npos);
}

TEST_F(CtlTest, top_once_fits_80_columns) {
  node_.start_broker();
  node_.prepare("a-rather-long-name-of-a-slice-that-does-not-fit", 10ull << 30, 25);
  const auto tenant = node_.start_tenant("a-rather-long-name-of-a-slice-that-does-not-fit");
  const Result result = ctl("top --once --interval 0.2");
  EXPECT_EQ(result.status, 0);
  std::istringstream lines(result.output);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_LE(count, 24);
  EXPECT_NE(result.output.find("a-rather"), std::string::npos);
}

TEST_F(CtlTest, set_changes_a_running_slice) {
  node_.start_broker();
  node_.prepare("job", 10ull << 30, 25);
  EXPECT_EQ(ctl("set job --memory 20GiB --compute 40 --compute-limit 60 --priority").status, 0);
  const nlohmann::json job = slices().at(0);
  EXPECT_EQ(job["gpus"][0]["quota_bytes"], 20ull << 30);
  EXPECT_EQ(job["compute"], 40);
  EXPECT_EQ(job["compute_limit"], 60);
  EXPECT_EQ(job["priority"], true);
  EXPECT_EQ(ctl("set job --no-priority").status, 0);
  EXPECT_EQ(slices().at(0)["priority"], false);
  EXPECT_EQ(ctl("set job --memory 90GiB").status, 1);
  EXPECT_EQ(ctl("set nobody --memory 1GiB").status, 1);
}

TEST_F(CtlTest, explain_says_who_uses_what) {
  node_.start_broker();
  node_.prepare("job", 10ull << 30, 25);
  const auto tenant = node_.start_tenant("job", {"--hold", std::to_string(2ull << 30)});
  const Result result = ctl("explain job");
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.output.find(std::to_string(tenant->pid())), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("fake_tenant"), std::string::npos);
  EXPECT_NE(result.output.find("2 GiB taken by programs"), std::string::npos);
  EXPECT_EQ(ctl("explain nobody").status, 1);
}

TEST_F(CtlTest, missing_libraries_are_named) {
  const Result result = ctl("run --lib-dir /nonexistent -- true");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.output.find("/nonexistent/libcuslice-cuda.so: No such file"), std::string::npos)
      << result.output;
}

TEST(NoDriverTest, run_says_that_there_is_no_driver) {
  FakeNode node;
  std::map<std::string, std::string> environment = node.environment();
  environment["LD_LIBRARY_PATH"] = "";
  Child child({"/bin/sh", "-c",
               "exec " + test::test_directory() + "/../cuslicectl run --lib-dir " + test::test_directory() +
                   "/empty_preloads -- true 2>&1"},
              environment);
  const std::string output = child.read_all();
  EXPECT_EQ(child.wait(), 1);
  EXPECT_NE(output.find("libnvidia-ml.so.1"), std::string::npos) << output;
}

}  // namespace
