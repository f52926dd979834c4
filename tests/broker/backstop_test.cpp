// SPDX-License-Identifier: Apache-2.0
//
// Processes that use a GPU past their slice's limits, and those that only look so. NVML lists what the test
// says, so any process can be one with memory.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "shm/segment.h"
#include "tests/broker/node_fixture.h"

namespace {

using test::Child;
using test::eventually;
using test::FakeNode;

constexpr uint64_t kGiB = 1ull << 30;
constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kContextBytes = 300 * kMiB;  // not what is assumed before it was measured

class BackstopTest : public testing::Test {
 protected:
  BackstopTest() { node_.start_broker(); }

  ctl::v1::Slice prepare(ctl::v1::BypassPolicy policy, uint32_t owner_pid = 0,
                         const std::string& cgroup = {}) {
    ctl::v1::PrepareSliceRequest request;
    request.set_id("a");
    request.add_gpus()->mutable_memory()->set_bytes(10 * kGiB);
    request.set_compute(25);
    request.set_bypass(policy);
    request.set_owner_pid(owner_pid);
    request.set_cgroup(cgroup);
    ctl::v1::Slice slice;
    const broker::Status status = ctl::Client(node_.run()).prepare(request, &slice);
    EXPECT_TRUE(status.ok()) << status.text;
    return slice;
  }

  // A process in the slice that has nothing of ours in it.
  std::unique_ptr<Child> start_outsider() {
    return std::make_unique<Child>(
        std::vector<std::string>{"/bin/sleep", "60"},
        std::map<std::string, std::string>{{"CUSLICE_SLICE", node_.run().slice("a")}});
  }

  static std::string line(pid_t pid, uint64_t bytes) {
    return "process 0 " + std::to_string(pid) + " " + std::to_string(bytes) + "\n";
  }

  ctl::v1::Slice slice() {
    ctl::v1::ListSlicesResponse slices;
    EXPECT_TRUE(ctl::Client(node_.run()).list(&slices).ok());
    return slices.slices_size() == 1 ? slices.slices(0) : ctl::v1::Slice();
  }

  bool becomes_bypassed(double seconds = 4) {
    return eventually(seconds, [&] { return slice().bypasses_size() != 0; });
  }
  bool stays_in_order() {
    return !eventually(4, [&] { return slice().bypasses_size() != 0; });
  }
  // The broker has forgotten it.
  bool is_over() {
    return eventually(4, [&] { return slice().bypasses_size() == 0; });
  }

  FakeNode node_;
};

TEST_F(BackstopTest, a_process_that_never_attached_is_reported_and_charged) {
  prepare(ctl::v1::BYPASS_POLICY_UNSPECIFIED);
  const auto outsider = start_outsider();
  node_.list_processes(line(outsider->pid(), 2 * kGiB));
  ASSERT_TRUE(becomes_bypassed());
  const ctl::v1::Slice bypassed = slice();
  ASSERT_EQ(bypassed.bypasses_size(), 1);
  EXPECT_EQ(bypassed.bypass(), ctl::v1::BYPASS_POLICY_REPORT);
  EXPECT_EQ(bypassed.bypasses(0).pid(), static_cast<uint32_t>(outsider->pid()));
  EXPECT_EQ(bypassed.bypasses(0).name(), "sleep");
  EXPECT_EQ(bypassed.bypasses(0).bytes(), 2 * kGiB);
  EXPECT_FALSE(bypassed.bypasses(0).attached());
  EXPECT_FALSE(bypassed.quarantined());
  EXPECT_EQ(node_.look("a").condition, "bypassed");
  EXPECT_EQ(node_.look("a").gpus[0].used_bytes(), 2 * kGiB);
  node_.list_processes("");
  EXPECT_TRUE(is_over());
  EXPECT_EQ(node_.look("a").gpus[0].used_bytes(), 0u);
}

TEST_F(BackstopTest, a_blocked_slice_gets_nothing_until_it_is_over) {
  prepare(ctl::v1::BYPASS_POLICY_BLOCK);
  const auto tenant = node_.start_tenant("a");
  const auto outsider = start_outsider();
  node_.list_processes(line(outsider->pid(), kGiB) + line(tenant->pid(), kContextBytes));
  ASSERT_TRUE(becomes_bypassed());
  EXPECT_TRUE(slice().quarantined());
  EXPECT_EQ(node_.look("a").condition, "blocked: bypassed");
  EXPECT_THROW(node_.start_tenant("a", {"--hold", std::to_string(kGiB)}), std::runtime_error);
  outsider->kill_hard();
  node_.list_processes(line(tenant->pid(), kContextBytes));
  EXPECT_TRUE(eventually(4, [&] { return !slice().quarantined(); }));
  EXPECT_NO_THROW(node_.start_tenant("a", {"--hold", std::to_string(kGiB)}));
  EXPECT_EQ(slice().pids_size(), 1);
}

TEST_F(BackstopTest, kill_ends_the_process_and_no_other) {
  prepare(ctl::v1::BYPASS_POLICY_KILL);
  const auto tenant = node_.start_tenant("a", {"--hold", std::to_string(kGiB)});
  const auto outsider = start_outsider();
  Child elsewhere({"/bin/sleep", "60"}, {});
  node_.list_processes(line(outsider->pid(), kGiB) + line(tenant->pid(), kGiB + kContextBytes) +
                       line(elsewhere.pid(), 70 * kGiB));
  EXPECT_EQ(outsider->wait(), 128 + SIGKILL);
  node_.list_processes(line(tenant->pid(), kGiB + kContextBytes) + line(elsewhere.pid(), 70 * kGiB));
  EXPECT_TRUE(is_over());
  EXPECT_EQ(::kill(tenant->pid(), 0), 0);
  EXPECT_EQ(slice().pids_size(), 1);
  EXPECT_EQ(::kill(elsewhere.pid(), 0), 0);
}

TEST_F(BackstopTest, the_policy_can_be_changed_while_it_happens_and_outlives_the_broker) {
  prepare(ctl::v1::BYPASS_POLICY_REPORT);
  const auto outsider = start_outsider();
  node_.list_processes(line(outsider->pid(), kGiB));
  ASSERT_TRUE(becomes_bypassed());
  ctl::v1::UpdateSliceRequest update;
  update.set_id("a");
  update.set_bypass(ctl::v1::BYPASS_POLICY_BLOCK);
  ctl::v1::Slice changed;
  ASSERT_TRUE(ctl::Client(node_.run()).update(update, &changed).ok());
  EXPECT_TRUE(changed.quarantined());
  node_.kill_broker();
  node_.start_broker();
  EXPECT_EQ(slice().bypass(), ctl::v1::BYPASS_POLICY_BLOCK);
  EXPECT_TRUE(becomes_bypassed());
  EXPECT_EQ(node_.look("a").gpus[0].used_bytes(), kGiB);
  update.set_bypass(ctl::v1::BYPASS_POLICY_KILL);
  ASSERT_TRUE(ctl::Client(node_.run()).update(update, &changed).ok());
  EXPECT_EQ(outsider->wait(), 128 + SIGKILL);
}

TEST_F(BackstopTest, what_the_owner_starts_is_the_slices_whatever_its_environment) {
  Child owner({"/bin/sh", "-c", "env -i /bin/sleep 60 & echo $!; wait"}, {});
  prepare(ctl::v1::BYPASS_POLICY_KILL, static_cast<uint32_t>(owner.pid()));
  node_.list_processes(line(std::stoi(owner.read_line()), kGiB));
  EXPECT_EQ(owner.wait(), 0);  // its child has been killed
}

TEST_F(BackstopTest, a_bad_cgroup_is_refused) {
  ctl::v1::PrepareSliceRequest request;
  request.set_id("a");
  ctl::v1::Slice slice;
  for (const char* cgroup : {"kubepods", "/", "/kubepods/"}) {
    request.set_cgroup(cgroup);
    const broker::Status status = ctl::Client(node_.run()).prepare(request, &slice);
    EXPECT_EQ(status.failure, broker::Failure::kInvalid) << cgroup;
  }
}

TEST_F(BackstopTest, a_process_in_no_slice_is_unmanaged) {
  prepare(ctl::v1::BYPASS_POLICY_KILL);
  Child elsewhere({"/bin/sleep", "60"}, {{"CUSLICE_SLICE", "/run/cuslice/slices/another"}});
  node_.list_processes(line(elsewhere.pid(), 20 * kGiB));
  EXPECT_TRUE(stays_in_order());
  ctl::v1::Node node;
  ASSERT_TRUE(ctl::Client(node_.run()).get_node(&node).ok());
  ASSERT_EQ(node.gpus(0).unmanaged_size(), 1);
  EXPECT_EQ(node.gpus(0).unmanaged(0).pid(), static_cast<uint32_t>(elsewhere.pid()));
  EXPECT_EQ(node.gpus(0).unmanaged(0).used_bytes(), 20 * kGiB);
}

TEST_F(BackstopTest, who_ends_or_attaches_late_is_not_suspected) {
  prepare(ctl::v1::BYPASS_POLICY_KILL);
  const auto ended = start_outsider();
  ended->kill_hard();
  const auto brief = start_outsider();
  node_.list_processes(line(ended->pid(), kGiB) + line(brief->pid(), kGiB));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  brief->kill_hard();
  // Its slot is found by the next look; the attach socket it never reaches.
  const auto late = node_.start_tenant("a", {"--attach", "0", "--hold", std::to_string(kGiB)});
  node_.list_processes(line(ended->pid(), kGiB) + line(late->pid(), kGiB + kContextBytes));
  EXPECT_TRUE(stays_in_order());
  EXPECT_EQ(::kill(late->pid(), 0), 0);
}

TEST_F(BackstopTest, a_process_that_takes_back_what_it_admitted_to_is_reported) {
  prepare(ctl::v1::BYPASS_POLICY_REPORT);
  const auto tenant = node_.start_tenant("a", {"--hold", std::to_string(3 * kGiB)});
  node_.list_processes(line(tenant->pid(), 3 * kGiB + kContextBytes));
  ASSERT_TRUE(eventually(4, [&] { return node_.look("a").gpus[0].overhead_bytes == kContextBytes; }));
  shm::State* state = nullptr;
  ASSERT_EQ(shm::attach_state(node_.run().slice("a").c_str(), &state), shm::AttachResult::kReady);
  state->ledger[0][0].held.fetch_and(~shm::kLedgerBytesMask);
  shm::detach(state);
  ASSERT_TRUE(becomes_bypassed(15));  // looks are seconds apart by now
  EXPECT_EQ(slice().bypasses(0).pid(), static_cast<uint32_t>(tenant->pid()));
  EXPECT_TRUE(slice().bypasses(0).attached());
  EXPECT_EQ(slice().bypasses(0).bytes(), 3 * kGiB);
  // Charged by what the driver says: it gained nothing.
  EXPECT_EQ(node_.look("a").gpus[0].used_bytes(), 3 * kGiB + kContextBytes);
}

TEST_F(BackstopTest, what_the_driver_takes_unasked_is_no_bypass) {
  prepare(ctl::v1::BYPASS_POLICY_KILL);
  const auto tenant = node_.start_tenant("a", {"--hold", std::to_string(3 * kGiB)});
  node_.list_processes(line(tenant->pid(), 3 * kGiB + kContextBytes));
  ASSERT_TRUE(eventually(4, [&] { return node_.look("a").gpus[0].overhead_bytes == kContextBytes; }));
  // Local memory of a kernel with a deep stack, and all within the quota.
  node_.list_processes(line(tenant->pid(), 8 * kGiB));
  EXPECT_TRUE(stays_in_order());
  EXPECT_EQ(::kill(tenant->pid(), 0), 0);
}

TEST_F(BackstopTest, a_process_that_is_never_still_is_held_to_the_quota) {
  prepare(ctl::v1::BYPASS_POLICY_REPORT);
  const auto tenant = node_.start_tenant("a", {"--unanswered", std::to_string(kGiB)});
  node_.list_processes(line(tenant->pid(), 8 * kGiB));
  EXPECT_TRUE(stays_in_order());
  node_.list_processes(line(tenant->pid(), 12 * kGiB));
  EXPECT_TRUE(becomes_bypassed(20));
}

}  // namespace
