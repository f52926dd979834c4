// SPDX-License-Identifier: Apache-2.0
//
// The daemon as a whole, on fake GPUs, with fake tenants.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "broker/clock.h"
#include "shm/segment.h"
#include "tests/broker/node_fixture.h"

namespace {

using broker::Failure;
using test::Child;
using test::eventually;
using test::FakeNode;

constexpr uint64_t kGiB = 1ull << 30;
constexpr uint64_t kMiB = 1ull << 20;

ctl::v1::PrepareSliceRequest wish(const std::string& id, uint64_t bytes, uint32_t compute) {
  ctl::v1::PrepareSliceRequest request;
  request.set_id(id);
  request.add_gpus()->mutable_memory()->set_bytes(bytes);
  request.set_compute(compute);
  return request;
}

TEST(BrokerTest, prepare_is_idempotent_and_keeps_what_it_was_given) {
  FakeNode node;
  node.start_broker();
  ctl::Client client(node.run());
  ctl::v1::PrepareSliceRequest request = wish("claim-1", 10 * kGiB, 25);
  request.set_driver_data("opaque");
  ctl::v1::Slice first, second;
  ASSERT_TRUE(client.prepare(request, &first).ok());
  ASSERT_TRUE(client.prepare(request, &second).ok());
  EXPECT_EQ(first.SerializeAsString(), second.SerializeAsString());
  EXPECT_EQ(first.driver_data(), "opaque");
  EXPECT_EQ(first.gpus(0).quota_bytes(), 10 * kGiB);
  request.set_compute(30);
  EXPECT_EQ(client.prepare(request, &second).failure, Failure::kExists);

  struct stat status;
  ASSERT_EQ(stat((first.directory() + "/attach").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666u);
  ASSERT_EQ(stat(node.run().socket().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(BrokerTest, what_does_not_fit_is_refused_with_what_is_free) {
  FakeNode node;
  node.start_broker();
  ctl::Client client(node.run());
  ctl::v1::Slice slice;
  ASSERT_TRUE(client.prepare(wish("a", 60 * kGiB, 75), &slice).ok());
  const broker::Status memory = client.prepare(wish("b", 30 * kGiB, 25), &slice);
  EXPECT_EQ(memory.failure, Failure::kFull);
  EXPECT_NE(memory.text.find("19.2 GiB and 25 % of compute free"), std::string::npos) << memory.text;
  EXPECT_EQ(client.prepare(wish("b", 10 * kGiB, 30), &slice).failure, Failure::kFull);
  EXPECT_EQ(client.prepare(wish("../b", 10 * kGiB, 25), &slice).failure, Failure::kInvalid);
  EXPECT_TRUE(client.prepare(wish("b", 19 * kGiB, 25), &slice).ok());
}

TEST(BrokerTest, update_changes_limits_in_place) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25);
  ctl::v1::UpdateSliceRequest request;
  request.set_id("a");
  request.mutable_memory()->set_bytes(20 * kGiB);
  request.set_compute_limit(50);
  ctl::v1::Slice slice;
  ASSERT_TRUE(ctl::Client(node.run()).update(request, &slice).ok());
  EXPECT_EQ(node.look("a").gpus[0].quota_bytes, 20 * kGiB);
  EXPECT_EQ(node.look("a").compute_limit_percent, 50u);
  EXPECT_EQ(node.look("a").compute_percent, 25u);
  request.mutable_memory()->set_bytes(100 * kGiB);
  EXPECT_EQ(ctl::Client(node.run()).update(request, &slice).failure, Failure::kFull);
}

TEST(BrokerTest, only_one_broker_serves_a_run_directory) {
  FakeNode node;
  node.start_broker();
  Child second({test::test_directory() + "/../cusliced", "--log-level", "error"}, node.environment());
  EXPECT_EQ(second.wait(), 1);
}

TEST(BrokerTest, a_killed_process_gives_everything_back_within_a_second) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25);
  const char* const kills_text = getenv("CUSLICE_TEST_KILLS");
  const int kills = kills_text != nullptr ? atoi(kills_text) : 60;
  double worst_seconds = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const auto tenant = node.start_tenant("a", {"--hold", std::to_string(9 * kGiB)});
    ASSERT_GE(node.look("a").gpus[0].used_bytes(), 9 * kGiB);
    tenant->kill_hard();
    const uint64_t killed_ns = broker::now_ns();
    ASSERT_TRUE(eventually(1, [&] { return node.look("a").gpus[0].used_bytes() == 0; })) << "kill " << kill;
    worst_seconds = std::max(worst_seconds, static_cast<double>(broker::now_ns() - killed_ns) / 1e9);
  }
  EXPECT_TRUE(node.look("a").processes.empty());
  RecordProperty("worst_seconds", std::to_string(worst_seconds));
}

TEST(BrokerTest, a_process_that_did_not_attach_is_found_and_reaped) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25);
  const auto tenant = node.start_tenant("a", {"--attach", "0", "--hold", std::to_string(kGiB)});
  EXPECT_TRUE(eventually(2, [&] {
    const ctl::SliceView slice = node.look("a");
    return slice.processes.size() == 1 && slice.processes[0].host_pid == static_cast<uint32_t>(tenant->pid());
  }));
  tenant->kill_hard();
  EXPECT_TRUE(eventually(1, [&] { return node.look("a").gpus[0].used_bytes() == 0; }));
}

TEST(BrokerTest, a_slot_whose_process_was_killed_before_it_wrote_itself_down_is_reaped) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25);
  shm::State* state = nullptr;
  ASSERT_EQ(shm::attach_state(node.run().slice("a").c_str(), &state), shm::AttachResult::kReady);
  for (const uint32_t generation : {0u, 7u}) {
    shm::Slot& slot = state->slots[1 + generation];
    slot.owner.store(shm::slot_owner(shm::kSlotLive, generation));
    state->header.slots_high.store(2 + generation);
  }
  const auto tenant = node.start_tenant("a");  // the broker looks at all of them
  EXPECT_TRUE(eventually(3, [&] {
    return shm::slot_state(state->slots[1].owner) == shm::kSlotFree &&
           shm::slot_state(state->slots[8].owner) == shm::kSlotFree;
  }));
  shm::detach(state);
}

TEST(BrokerTest, what_the_driver_still_lists_of_a_dead_process_stays_charged) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25);
  const auto tenant = node.start_tenant("a", {"--hold", std::to_string(2 * kGiB)});
  node.list_processes("process 0 " + std::to_string(tenant->pid()) + " " +
                      std::to_string(2 * kGiB + 500 * kMiB));
  ASSERT_TRUE(eventually(3, [&] { return node.look("a").gpus[0].overhead_bytes == 500 * kMiB; }));
  tenant->kill_hard();
  ASSERT_TRUE(eventually(1, [&] { return node.look("a").gpus[0].held_bytes == 0; }));
  EXPECT_EQ(node.look("a").gpus[0].orphaned_bytes, 2 * kGiB + 500 * kMiB);
  node.list_processes("");
  EXPECT_TRUE(eventually(1, [&] { return node.look("a").gpus[0].used_bytes() == 0; }));
}

TEST(BrokerTest, a_context_is_charged_as_measured_and_learned) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25);
  const auto tenant = node.start_tenant("a", {"--hold", std::to_string(kGiB)});
  EXPECT_EQ(node.look("a").gpus[0].overhead_bytes,
            512 * kMiB);  // the floor of a context that nobody measured
  node.list_processes("process 0 " + std::to_string(tenant->pid()) + " " + std::to_string(kGiB + 300 * kMiB));
  EXPECT_TRUE(eventually(3, [&] { return node.look("a").gpus[0].overhead_bytes == 300 * kMiB; }));
  node.prepare("b", 10 * kGiB, 25);
  const shm::Limits* limits = nullptr;
  ASSERT_EQ(shm::attach_limits(node.run().slice("b").c_str(), &limits), shm::AttachResult::kReady);
  EXPECT_EQ(limits->gpus[0].context_bytes.load(), 300 * kMiB);
  shm::detach(limits);
}

TEST(BrokerTest, a_process_is_not_measured_while_the_driver_owes_it_an_answer) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25);
  const auto tenant = node.start_tenant("a", {"--unanswered", std::to_string(kGiB / 4)});
  const auto list = [&](uint64_t bytes) {
    node.list_processes("process 0 " + std::to_string(tenant->pid()) + " " + std::to_string(bytes));
  };
  list(500 * kMiB);
  // The driver's 500 MiB less the 256 MiB that it has not given yet would be 244.
  EXPECT_FALSE(eventually(1.5, [&] { return node.look("a").gpus[0].overhead_bytes != 512 * kMiB; }));
  list(kGiB / 4 + 500 * kMiB);
  EXPECT_FALSE(eventually(0.5, [&] { return node.look("a").gpus[0].overhead_bytes != 512 * kMiB; }));
  tenant->signal(SIGUSR1);
  EXPECT_TRUE(eventually(3, [&] { return node.look("a").gpus[0].overhead_bytes == 500 * kMiB; }));
}

TEST(BrokerTest, a_released_slice_drains_and_goes_with_its_last_process) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25);
  const auto tenant = node.start_tenant("a");
  ctl::v1::ReleaseSliceResponse response;
  ASSERT_TRUE(ctl::Client(node.run()).release("a", &response).ok());
  ASSERT_EQ(response.draining_pids_size(), 1);
  EXPECT_EQ(response.draining_pids(0), static_cast<uint32_t>(tenant->pid()));
  EXPECT_EQ(node.look("a").condition, "draining");
  EXPECT_THROW(node.start_tenant("a"), std::runtime_error);
  tenant->kill_hard();
  EXPECT_TRUE(eventually(1, [&] { return !std::filesystem::exists(node.run().slice("a")); }));
  EXPECT_TRUE(ctl::Client(node.run()).release("a", &response).ok());
}

TEST(BrokerTest, a_slice_goes_with_its_owner) {
  FakeNode node;
  node.start_broker();
  Child owner({"/bin/sleep", "60"}, {});
  ctl::v1::PrepareSliceRequest request = wish("a", 10 * kGiB, 25);
  request.set_owner_pid(static_cast<uint32_t>(owner.pid()));
  ctl::v1::Slice slice;
  ASSERT_TRUE(ctl::Client(node.run()).prepare(request, &slice).ok());
  owner.kill_hard();
  EXPECT_TRUE(eventually(1, [&] { return !std::filesystem::exists(node.run().slice("a")); }));
}

TEST(BrokerTest, a_new_broker_takes_over_what_a_killed_one_left) {
  FakeNode node(2);
  node.start_broker();
  Child owner({"/bin/sleep", "60"}, {});
  ctl::v1::PrepareSliceRequest request = wish("owned", 10 * kGiB, 25);
  request.set_owner_pid(static_cast<uint32_t>(owner.pid()));
  request.set_driver_data("blob");
  ctl::v1::Slice slice;
  ASSERT_TRUE(ctl::Client(node.run()).prepare(request, &slice).ok());
  node.prepare("a", 10 * kGiB, 25);
  const auto survivor = node.start_tenant("a", {"--hold", std::to_string(kGiB)});
  const auto victim = node.start_tenant("a", {"--hold", std::to_string(kGiB)});

  node.kill_broker();
  victim->kill_hard();
  const auto newcomer = node.start_tenant("a", {"--hold", std::to_string(kGiB)});  // nobody listens
  const uint32_t newcomer_pid = static_cast<uint32_t>(newcomer->pid());
  EXPECT_EQ(node.look("a").gpus[0].held_bytes, 3 * kGiB);

  node.start_broker();
  EXPECT_EQ(node.look("a").gpus[0].held_bytes, 2 * kGiB);
  ctl::v1::ListSlicesResponse slices;
  ASSERT_TRUE(ctl::Client(node.run()).list(&slices).ok());
  ASSERT_EQ(slices.slices_size(), 2);
  EXPECT_EQ(slices.slices(1).driver_data(), "blob");
  const auto& pids = slices.slices(0).pids();
  EXPECT_EQ(pids.size(), 2);
  EXPECT_NE(std::find(pids.begin(), pids.end(), newcomer_pid), pids.end());

  // Promises of the earlier broker count, and its prepare is remembered.
  ctl::v1::Slice again;
  EXPECT_TRUE(ctl::Client(node.run()).prepare(request, &again).ok());
  newcomer->kill_hard();
  survivor->kill_hard();
  EXPECT_TRUE(eventually(1, [&] { return node.look("a").gpus[0].used_bytes() == 0; }));
  owner.kill_hard();
  EXPECT_TRUE(eventually(1, [&] { return !std::filesystem::exists(node.run().slice("owned")); }));
}

TEST(BrokerTest, a_slice_whose_owner_ended_while_there_was_no_broker_goes) {
  FakeNode node;
  node.start_broker();
  Child owner({"/bin/sleep", "60"}, {});
  ctl::v1::PrepareSliceRequest request = wish("owned", 10 * kGiB, 25);
  request.set_owner_pid(static_cast<uint32_t>(owner.pid()));
  ctl::v1::Slice slice;
  ASSERT_TRUE(ctl::Client(node.run()).prepare(request, &slice).ok());
  node.kill_broker();
  owner.kill_hard();
  node.start_broker();
  ctl::v1::ListSlicesResponse slices;
  ASSERT_TRUE(ctl::Client(node.run()).list(&slices).ok());
  EXPECT_EQ(slices.slices_size(), 0);
  EXPECT_FALSE(std::filesystem::exists(node.run().slice("owned")));
}

TEST(BrokerTest, a_cut_state_quarantines_its_slice_only) {
  FakeNode node;
  node.start_broker();
  node.prepare("bad", 10 * kGiB, 25);
  node.prepare("good", 10 * kGiB, 25);
  const auto tenant = node.start_tenant("good", {"--hold", std::to_string(kGiB)});
  ASSERT_EQ(truncate((node.run().slice("bad") + "/state").c_str(), 0), 0);
  const shm::Limits* limits = nullptr;
  ASSERT_EQ(shm::attach_limits(node.run().slice("bad").c_str(), &limits), shm::AttachResult::kReady);
  EXPECT_TRUE(eventually(2, [&] {
    ctl::v1::ListSlicesResponse slices;
    EXPECT_TRUE(ctl::Client(node.run()).list(&slices).ok());
    return (limits->header.flags.load() & shm::kQuarantined) != 0 &&
           limits->gate.mode.load() == shm::kBlocked;
  }));
  shm::detach(limits);
  tenant->kill_hard();
  EXPECT_TRUE(eventually(1, [&] { return node.look("good").gpus[0].used_bytes() == 0; }));
  ctl::v1::ReleaseSliceResponse response;
  EXPECT_TRUE(ctl::Client(node.run()).release("bad", &response).ok());
  EXPECT_FALSE(std::filesystem::exists(node.run().slice("bad")));
}

TEST(BrokerTest, a_cut_limits_quarantines_its_slice_only) {
  FakeNode node;
  node.start_broker();
  ctl::Client client(node.run());
  for (const off_t left_bytes : {0, 4096}) {
    node.prepare("bad", 10 * kGiB, 25);
    node.prepare("good", 10 * kGiB, 25);
    const auto tenant = node.start_tenant("good", {"--hold", std::to_string(kGiB)});
    const auto victim = node.start_tenant("bad");
    ASSERT_EQ(truncate((node.run().slice("bad") + "/limits").c_str(), left_bytes), 0);
    ctl::v1::ListSlicesResponse slices;
    EXPECT_TRUE(eventually(2, [&] {
      victim->kill_hard();  // its record is cleared in what was cut off
      return client.list(&slices).ok() && slices.slices_size() == 2 && slices.slices(0).quarantined();
    }));
    EXPECT_EQ(slices.slices(0).id(), "bad");
    EXPECT_FALSE(slices.slices(1).quarantined());
    tenant->kill_hard();
    EXPECT_TRUE(eventually(1, [&] { return node.look("good").gpus[0].used_bytes() == 0; }));
    ctl::v1::ReleaseSliceResponse response;
    EXPECT_TRUE(client.release("bad", &response).ok());
    EXPECT_FALSE(std::filesystem::exists(node.run().slice("bad")));
    EXPECT_TRUE(client.release("good", &response).ok());
  }
}

TEST(BrokerTest, what_is_left_of_a_damaged_slice_does_not_keep_its_name) {
  FakeNode node;
  const auto damage = [&](const std::string& id) {
    node.start_broker();
    node.prepare(id, 10 * kGiB, 25);
    node.kill_broker();
    ASSERT_EQ(truncate((node.run().slice(id) + "/limits").c_str(), 100), 0);
    std::filesystem::remove(node.run().slice(id) + "/state");
    std::filesystem::create_directories(node.run().slice(id) + "/state/more");
    node.start_broker();
  };
  damage("released");
  ctl::v1::ReleaseSliceResponse response;
  EXPECT_TRUE(ctl::Client(node.run()).release("released", &response).ok());
  EXPECT_FALSE(std::filesystem::exists(node.run().slice("released")));
  EXPECT_FALSE(std::filesystem::exists(node.run().record("released")));

  damage("again");
  node.prepare("again", 5 * kGiB, 25);
  EXPECT_EQ(node.look("again").gpus[0].quota_bytes, 5 * kGiB);
}

TEST(BrokerTest, told_to_end_it_leaves_the_slices) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25);
  node.broker()->signal(SIGTERM);
  EXPECT_EQ(node.broker()->wait(), 0);
  EXPECT_EQ(node.look("a").gpus[0].quota_bytes, 10 * kGiB);
}

TEST(BrokerTest, a_transient_one_ends_after_its_last_slice_and_leaves_nothing) {
  FakeNode node;
  node.start_broker({"--transient"});
  node.prepare("a", 10 * kGiB, 25);
  ctl::v1::ReleaseSliceResponse response;
  ASSERT_TRUE(ctl::Client(node.run()).release("a", &response).ok());
  const uint64_t released_ns = broker::now_ns();
  EXPECT_EQ(node.broker()->wait(), 0);
  EXPECT_NEAR(static_cast<double>(broker::now_ns() - released_ns) / 1e9, 2.0, 0.8);
  EXPECT_FALSE(std::filesystem::exists(node.run().path()));
}

}  // namespace
