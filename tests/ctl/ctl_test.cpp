// SPDX-License-Identifier: Apache-2.0
//
// cuslicectl as its users run it, on fake GPUs, with empty libraries in place of the preloaded ones.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shm/layout.h"
#include "tests/broker/node_fixture.h"
#include "tests/support/small_library.h"

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

  explicit CtlTest(int gpus = 1) : node_(gpus) {}

  Result finish(const std::vector<std::string>& arguments) const {
    Child child(arguments, node_.environment());
    const std::string output = child.read_all();
    return {child.wait(), output};
  }
  Result ctl(const std::string& text) const { return finish(command(text)); }
  // `text` for the shell, with the program as $ctl.
  Result shell(const std::string& text) const {
    return finish({"/bin/sh", "-c", "ctl=" + test::test_directory() + "/../cuslicectl; exec 2>&1; " + text});
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

TEST_F(CtlTest, run_ends_where_its_parent_ignores_ended_children) {
  const auto before = signal(SIGCHLD, SIG_IGN);
  // Not by way of a shell: some stop ignoring it.
  Child child({test::test_directory() + "/../cuslicectl", "run", "--lib-dir",
               test::test_directory() + "/empty_preloads", "--memory", "2GiB", "--", "sh", "-c", "exit 7"},
              node_.environment());
  signal(SIGCHLD, before);
  const auto has_ended = [&child] {
    siginfo_t ended = {};
    return waitid(P_PID, static_cast<id_t>(child.pid()), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           ended.si_pid == child.pid();
  };
  ASSERT_TRUE(eventually(10, has_ended));
  EXPECT_EQ(child.wait(), 7);
  await_end();
}

TEST_F(CtlTest, a_name_in_use_is_refused_and_its_slice_lives_on) {
  Child first(command(run_options() + "--memory 10GiB --name job -- sleep 60"), node_.environment());
  ASSERT_TRUE(eventually(5, [&] { return slices().size() == 1; }));
  const Result second = ctl(run_options() + "--memory 10GiB --name job -- true");
  EXPECT_EQ(second.status, 1);
  EXPECT_NE(second.output.find("slice job is in use by pid " + std::to_string(first.pid()) +
                               "; choose another --name"),
            std::string::npos)
      << second.output;
  EXPECT_EQ(slices().size(), 1u);
  first.signal(SIGTERM);
  first.wait();
  await_end();
}

TEST_F(CtlTest, a_slice_that_no_command_owns_is_not_taken_by_one) {
  node_.start_broker();
  node_.prepare("job", 10ull << 30, 25);
  const Result run =
      ctl(run_options() + "--memory 10GiB --compute 25 --compute-limit 100 --name job -- true");
  EXPECT_EQ(run.status, 1);
  EXPECT_NE(run.output.find("slice job exists; choose another --name"), std::string::npos) << run.output;
  EXPECT_EQ(slices().size(), 1u);
}

TEST_F(CtlTest, a_refused_first_run_leaves_its_broker_2_seconds) {
  EXPECT_EQ(ctl(run_options() + "--memory 900GiB -- true").status, 1);
  EXPECT_TRUE(eventually(4, [&] { return !std::filesystem::exists(node_.run().path()); }));
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
  for (const char* arguments : {"",
                                "frob",
                                "run",
                                "run --memory 10GX -- true",
                                "run --memory -1GiB -- true",
                                "run --memory '' -- true",
                                "run --compute 0 -- true",
                                "run --compute 101 -- true",
                                "run --compute-limit 1e1 -- true",
                                "set",
                                "set a",
                                "set a --memory x",
                                "top --interval 0",
                                "top --once --sort height",
                                "top --once --interval nan",
                                "top --once --interval inf",
                                "top --once --interval 1e300",
                                "run --gpu '' -- true",
                                "run --name '' -- true",
                                "explain",
                                "audit ''",
                                "audit /etc/passwd"}) {
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

TEST_F(CtlTest, top_shows_time_and_sorts) {
  node_.start_broker();
  std::vector<std::unique_ptr<Child>> tenants;
  for (const auto& [id, gib] : {std::pair{"a-small", 1ull}, std::pair{"b-large", 4ull}}) {
    node_.prepare(id, 10ull << 30, 50);
    tenants.push_back(node_.start_tenant(id, {"--gpu", node_.directory() + "/gpu", "--kernel-us", "500",
                                              "--seconds", "20", "--hold", std::to_string(gib << 30)}));
  }
  // The line of each slice, as words: name, share, wanted and got over three windows each, and how turns
  // went.
  std::vector<std::vector<std::string>> lines;
  EXPECT_TRUE(eventually(10, [&] {
    lines.clear();
    std::istringstream output(ctl("top --once --time --interval 0.5").output);
    for (std::string line; std::getline(output, line);) {
      EXPECT_LE(line.size(), 80u) << line;
      std::istringstream words(line);
      if (line.starts_with("a-") || line.starts_with("b-")) {
        lines.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
      }
    }
    const auto measured = [](const std::vector<std::string>& line) {
      return line.size() == 13 && std::atoi(line[2].c_str()) > 50 && std::atoi(line[5].c_str()) > 25 &&
             std::atoi(line[8].c_str()) > 0 && std::atoi(line[9].c_str()) > 0 && line[11] != "-";
    };
    return lines.size() == 2 && measured(lines[0]) && measured(lines[1]);
  })) << ctl("top --once --time --interval 0.5").output;

  const std::string by_name = ctl("top --once --interval 0.1").output;
  EXPECT_LT(by_name.find("a-small"), by_name.find("b-large"));
  const std::string by_memory = ctl("top --once --interval 0.1 --sort memory").output;
  EXPECT_GT(by_memory.find("a-small"), by_memory.find("b-large"));
}

TEST_F(CtlTest, top_for_machines_is_an_object_per_interval) {
  node_.start_broker();
  std::vector<std::unique_ptr<Child>> tenants;
  for (const char* id : {"one", "other"}) {
    node_.prepare(id, 10ull << 30, 50);
    tenants.push_back(node_.start_tenant(
        id, {"--gpu", node_.directory() + "/gpu", "--kernel-us", "500", "--seconds", "20"}));
  }
  EXPECT_TRUE(eventually(10, [&] {
    const nlohmann::json json = nlohmann::json::parse(ctl("top --once --json --interval 0.5").output);
    const nlohmann::json& slice = json.at("slices").at(0);
    return json.at("broker_answers") == true && json.at("slices").size() == 2 &&
           slice.at("interval").at("turns") > 0 && slice.at("interval").at("waited_ns") > 0 &&
           slice.at("interval").at("received_percent") > 25 && slice.at("interval").contains("handover_ns") &&
           slice.contains("wanted_percent");
  }));
  const Result two = shell("timeout 2 $ctl top --json --interval 0.2 | head -2");
  std::istringstream lines(two.output);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }
  EXPECT_EQ(count, 2);
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

TEST_F(CtlTest, explain_tells_what_was_wanted_and_received) {
  node_.start_broker();
  std::vector<std::unique_ptr<Child>> tenants;
  for (const char* id : {"more", "less"}) {
    node_.prepare(id, 10ull << 30, id[0] == 'm' ? 75 : 25);
    tenants.push_back(node_.start_tenant(
        id, {"--gpu", node_.directory() + "/gpu", "--kernel-us", "500", "--seconds", "20"}));
  }
  const auto received = [&](const char* id) {
    const nlohmann::json job = nlohmann::json::parse(ctl(std::string("explain --json ") + id).output);
    return job.contains("received_percent") ? job["received_percent"]["1"].get<double>() : 0;
  };
  EXPECT_TRUE(eventually(
      10, [&] { return std::abs(received("more") - 75) < 10 && std::abs(received("less") - 25) < 10; }));
  const Result result = ctl("explain less");
  EXPECT_NE(result.output.find("OVER THE LAST"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("waited for more"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("it waits for its neighbours, most for more"), std::string::npos)
      << result.output;
}

TEST_F(CtlTest, output_that_cannot_be_written_is_a_failure) {
  for (const char* command : {"$ctl ls >/dev/full", "$ctl ls --json >/dev/full", "$ctl ls >&-",
                              "$ctl --version >/dev/full", "$ctl top --once --interval 0.1 >&-"}) {
    const Result result = shell(command);
    EXPECT_EQ(result.status, 1) << command;
    EXPECT_NE(result.output.find("cannot write to stdout"), std::string::npos) << command << result.output;
  }
}

TEST_F(CtlTest, run_needs_no_stdout_and_makes_none_for_its_command) {
  node_.start_broker();
  const Result result = shell("$ctl " + run_options() + "--memory 10GiB -- test ! -e /proc/self/fd/1 >&-");
  EXPECT_EQ(result.status, 0) << result.output;
}

TEST_F(CtlTest, the_run_directory_may_be_relative) {
  const std::string parent = std::filesystem::path(node_.run().path()).parent_path();
  const Result result = shell("cd " + parent + " && exec $ctl --run-dir ./run/ " + run_options() +
                              "--memory 10GiB --name job -- sh -c 'cd / && ls $CUSLICE_SLICE'");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_NE(result.output.find("limits"), std::string::npos) << result.output;
  await_end();
}

TEST_F(CtlTest, a_run_directory_that_cannot_be_one_is_refused_with_the_reason) {
  const Result colon = ctl("--run-dir /tmp/a:b ls");
  EXPECT_EQ(colon.status, 2);
  EXPECT_NE(colon.output.find("':' separates the slices in CUSLICE_SLICE"), std::string::npos)
      << colon.output;
  for (const char* path : {"/tmp/a%41", "/tmp/a#b", "/tmp/a?b"}) {
    EXPECT_EQ(ctl(std::string("--run-dir '") + path + "' ls").status, 2) << path;
  }
  // "/broker.sock" is 12 bytes long.
  EXPECT_EQ(ctl("--run-dir /tmp/" + std::string(90, 'x') + " ls").status, 0);
  const Result limit = ctl("--run-dir /tmp/" + std::string(91, 'x') + " ls");
  EXPECT_EQ(limit.status, 2);
  EXPECT_NE(limit.output.find("108 bytes, and the path of a socket has at most 107"), std::string::npos)
      << limit.output;
  EXPECT_EQ(ctl("--run-dir '' ls").status, 2);
}

TEST_F(CtlTest, a_socket_that_may_not_be_opened_is_not_taken_for_no_broker) {
  node_.start_broker();
  // Root may open everything, and so must be somebody else for it; others only have no right to their own.
  std::filesystem::permissions(node_.directory(), std::filesystem::perms(0755));
  const uid_t user = geteuid();
  if (user == 0) {
    ASSERT_EQ(seteuid(65534), 0);
  } else {
    ASSERT_EQ(chmod(node_.run().socket().c_str(), 0), 0);
  }
  ctl::v1::Node node;
  const broker::Status asked = ctl::Client(node_.run()).get_node(&node);
  ASSERT_EQ(seteuid(user), 0);
  EXPECT_EQ(asked.failure, broker::Failure::kSystem);
  EXPECT_NE(asked.text.find("cannot ask the broker on " + node_.run().socket() + ": Permission denied"),
            std::string::npos)
      << asked.text;
}

TEST_F(CtlTest, a_plain_file_in_place_of_the_socket_is_named) {
  std::filesystem::create_directories(node_.run().path());
  std::ofstream(node_.run().socket()) << "x";
  const Result run = ctl(run_options() + "--memory 10GiB -- true");
  EXPECT_EQ(run.status, 1);
  EXPECT_NE(run.output.find(node_.run().socket() + " is no socket"), std::string::npos) << run.output;
  EXPECT_NE(ctl("ls").output.find("is no socket"), std::string::npos);
  const Result daemon = shell("exec ${ctl%ctl}d");
  EXPECT_EQ(daemon.status, 1);
  EXPECT_NE(daemon.output.find("what is there is no socket; remove it"), std::string::npos) << daemon.output;
}

// Where nothing else chooses, CUDA_VISIBLE_DEVICES does.
class VisibleDevicesTest : public CtlTest {
 protected:
  VisibleDevicesTest() : CtlTest(2) {}

  Result run_seeing(const std::string& visible, const std::string& options = "") const {
    return shell("CUDA_VISIBLE_DEVICES='" + visible + "' exec $ctl " + run_options() + options +
                 " --memory 10GiB -- sh -c 'echo $CUDA_VISIBLE_DEVICES'");
  }
  std::vector<std::string> uuids() const {
    ctl::v1::Node node;
    EXPECT_TRUE(ctl::Client(node_.run()).get_node(&node).ok());
    return {node.gpus(0).uuid(), node.gpus(1).uuid()};
  }
};

TEST_F(VisibleDevicesTest, its_first_gpu_gets_the_slice) {
  node_.start_broker();
  const std::vector<std::string> uuid = uuids();
  for (int gpu : {0, 1}) {
    const std::string index = std::to_string(gpu), other = std::to_string(1 - gpu);
    for (const std::string& visible : {index, index + "," + other, " " + uuid[gpu] + " ", uuid[gpu] + ",9"}) {
      EXPECT_EQ(run_seeing(visible).output, uuid[gpu] + "\n") << visible;
    }
  }
  EXPECT_EQ(run_seeing("1", "--gpu 0").output, uuid[0] + "\n");
}

TEST_F(CtlTest, a_prefix_names_the_gpu_that_it_fits) {
  node_.start_broker();
  EXPECT_EQ(shell("CUDA_VISIBLE_DEVICES=GPU-00 exec $ctl " + run_options() + "--memory 10GiB -- true").status,
            0);
}

TEST_F(VisibleDevicesTest, what_names_no_gpu_is_an_error) {
  node_.start_broker();
  for (const char* visible : {"", "2", "-1", "2,0", "1x", "GPU-ffffffff", "MIG-0"}) {
    const Result result = run_seeing(visible);
    EXPECT_EQ(result.status, 1) << visible << ": " << result.output;
    EXPECT_NE(result.output.find(std::string("CUDA_VISIBLE_DEVICES='") + visible +
                                 "': its first entry names no GPU"),
              std::string::npos)
        << result.output;
  }
  EXPECT_NE(run_seeing("GPU-").output.find("more than one GPU"), std::string::npos);
}

TEST_F(CtlTest, audit_names_unknown_functions_and_only_strict_fails_for_them) {
  const std::string path = node_.run().path() + "-libcuda.so.1";
  std::ofstream(path, std::ios::binary) << test::small_library({"cuMemAlloc_v2", "cuMemAlloc_v9", "cuNew"});
  const Result audit = ctl("audit " + path);
  EXPECT_EQ(audit.status, 0) << audit.output;
  EXPECT_NE(audit.output.find("another form of cuMemAlloc, which is charged"), std::string::npos)
      << audit.output;
  EXPECT_EQ(ctl("audit --strict " + path).status, 1);

  const auto seen = nlohmann::json::parse(ctl("audit --json " + path).output);
  EXPECT_EQ(seen["counts"]["charged"], 1);
  EXPECT_EQ(seen["counts"]["UNKNOWN"], 3);
  EXPECT_EQ(seen["functions"][0]["policy"], "charged");
  EXPECT_EQ(seen["functions"][1]["form_of"], "cuMemAlloc");
  EXPECT_EQ(seen["functions"][2]["may_pass_limits"], true);

  std::ofstream(path, std::ios::binary)
      << test::small_library({"cuMemAlloc_v2", "cuDriverGetVersion_v2"}, {.versions = true});
  EXPECT_EQ(ctl("audit --strict " + path).status, 0) << "a new form of a forwarded function";
  std::filesystem::resize_file(path, 200);
  const Result cut = ctl("audit " + path);
  EXPECT_EQ(cut.status, 1) << cut.output;
  EXPECT_NE(cut.output.find("cut or damaged"), std::string::npos) << cut.output;
  std::filesystem::remove(path);
}

TEST_F(CtlTest, what_a_slice_looked_up_in_vain_is_told_by_audit_and_explain) {
  node_.start_broker();
  node_.prepare("job", 10ull << 30, 25);
  {
    std::fstream state(node_.run().slice("job") + "/state", std::ios::in | std::ios::out | std::ios::binary);
    shm::UnknownFunction function = {};
    function.hash = 1;
    strcpy(function.name, "cuNew\x1b");
    state.seekp(offsetof(shm::State, unknown) + 3 * sizeof function);
    state.write(reinterpret_cast<const char*>(&function), sizeof function);
  }
  const std::string path = node_.run().path() + "-libcuda.so.1";
  std::ofstream(path, std::ios::binary) << test::small_library({"cuInit"});
  EXPECT_NE(ctl("audit " + path).output.find("slice job: a program looked up cuNew?"), std::string::npos);
  const auto seen = nlohmann::json::parse(ctl("audit --json " + path).output);
  EXPECT_EQ(seen["slices"][0]["unknown_functions"], nlohmann::json::array({"cuNew?"}));
  EXPECT_NE(ctl("explain job").output.find("cuNew?"), std::string::npos);
  std::filesystem::remove(path);
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
