// SPDX-License-Identifier: Apache-2.0
//
// Turns end to end: the daemon, its threads and futexes, and tenants that saturate one fake GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <sstream>
#include <thread>

#include "broker/futex.h"
#include "shm/segment.h"
#include "tests/broker/node_fixture.h"

namespace {

using test::FakeNode;

constexpr uint64_t kGiB = 1ull << 30;

struct Turn {
  uint64_t granted_ns, first_ns, drained_ns;
  size_t tenant;
};

struct Outcome {
  std::vector<double> busy_seconds;
  std::vector<Turn> turns;  // of all tenants, in order
};

Outcome read_outcome(const std::vector<std::unique_ptr<test::Child>>& tenants) {
  Outcome outcome;
  for (size_t tenant = 0; tenant < tenants.size(); ++tenant) {
    std::istringstream text(tenants[tenant]->read_all());
    for (std::string word; text >> word;) {
      if (word == "busy") {
        uint64_t busy_ns = 0;
        text >> busy_ns;
        outcome.busy_seconds.push_back(static_cast<double>(busy_ns) / 1e9);
      } else {
        Turn turn = {};
        text >> turn.granted_ns >> turn.first_ns >> turn.drained_ns;
        turn.tenant = tenant;
        outcome.turns.push_back(turn);
      }
    }
  }
  std::sort(outcome.turns.begin(), outcome.turns.end(),
            [](const Turn& a, const Turn& b) { return a.granted_ns < b.granted_ns; });
  return outcome;
}

std::vector<std::string> saturate(const FakeNode& node, int kernel_us, double seconds) {
  return {"--gpu",     node.directory() + "/gpu", "--kernel-us", std::to_string(kernel_us),
          "--seconds", std::to_string(seconds)};
}

class SharesTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(SharesTest, saturating_tenants_receive_their_share) {
  const auto [first_share, kernel_us] = GetParam();
  constexpr double kSeconds = 4;
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, static_cast<uint32_t>(first_share));
  node.prepare("b", 10 * kGiB, static_cast<uint32_t>(100 - first_share));
  std::vector<std::unique_ptr<test::Child>> tenants;
  tenants.push_back(node.start_tenant("a", saturate(node, kernel_us, kSeconds)));
  tenants.push_back(node.start_tenant("b", saturate(node, kernel_us, kSeconds)));
  const Outcome outcome = read_outcome(tenants);
  ASSERT_EQ(outcome.busy_seconds.size(), 2u);
  const double busy = outcome.busy_seconds[0] + outcome.busy_seconds[1];
  // The claim is 3 points and 95 %, and scripts/verify.sh measures it; here a loaded machine must pass too.
  EXPECT_NEAR(100 * outcome.busy_seconds[0] / busy, first_share, 5);
  EXPECT_GE(busy, 0.85 * kSeconds);
}

INSTANTIATE_TEST_SUITE_P(Turns, SharesTest,
                         testing::Values(std::tuple(75, 1000), std::tuple(30, 1000), std::tuple(50, 50),
                                         std::tuple(75, 20'000)));

TEST(TurnsTest, a_capped_tenant_alone_receives_its_limit) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25, 25);
  std::vector<std::unique_ptr<test::Child>> tenants;
  tenants.push_back(node.start_tenant("a", saturate(node, 1000, 3)));
  const Outcome outcome = read_outcome(tenants);
  EXPECT_NEAR(100 * outcome.busy_seconds.at(0) / 3, 25, 3);
}

TEST(TurnsTest, one_tenant_alone_is_not_held_up) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 25);
  std::vector<std::unique_ptr<test::Child>> tenants;
  tenants.push_back(node.start_tenant("a", saturate(node, 1000, 2)));
  EXPECT_GE(read_outcome(tenants).busy_seconds.at(0), 0.9 * 2);
}

TEST(TurnsTest, turns_go_on_under_a_new_broker) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 75);
  node.prepare("b", 10 * kGiB, 25);
  std::vector<std::unique_ptr<test::Child>> tenants;
  tenants.push_back(node.start_tenant("a", saturate(node, 1000, 4)));
  tenants.push_back(node.start_tenant("b", saturate(node, 1000, 4)));
  usleep(500'000);
  node.kill_broker();
  node.start_broker();
  const Outcome outcome = read_outcome(tenants);
  const double busy = outcome.busy_seconds[0] + outcome.busy_seconds[1];
  EXPECT_NEAR(100 * outcome.busy_seconds[0] / busy, 75, 8);
  EXPECT_GE(busy, 3);
}

TEST(TurnsTest, a_killed_holder_does_not_stop_the_others) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 50);
  node.prepare("b", 10 * kGiB, 50);
  std::vector<std::unique_ptr<test::Child>> tenants;
  tenants.push_back(node.start_tenant("b", saturate(node, 1000, 3)));
  for (int i = 0; i < 10; ++i) {
    const auto killed = node.start_tenant("a", saturate(node, 1000, 60));
    usleep(100'000);
    killed->kill_hard();
  }
  EXPECT_GE(read_outcome(tenants).busy_seconds.at(0), 1.8);
}

// A tenant that rings all the time, and wakes the broker each time.
TEST(TurnsTest, a_flooded_doorbell_slows_only_its_own_slice) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 50);
  node.prepare("b", 10 * kGiB, 40);
  node.prepare("hostile", 10 * kGiB, 10);
  shm::State* state = nullptr;
  ASSERT_EQ(shm::attach_state(node.run().slice("hostile").c_str(), &state), shm::AttachResult::kReady);
  std::atomic<bool> end = false;
  std::thread flood([&] {
    while (!end.load()) {
      for (int i = 0; i < 100; ++i) {
        state->doorbell.rings.fetch_add(1);
        broker::futex_wake(state->doorbell.rings);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // not to take the test's processor instead
    }
  });
  std::vector<std::unique_ptr<test::Child>> tenants;
  tenants.push_back(node.start_tenant("a", saturate(node, 1000, 3)));
  tenants.push_back(node.start_tenant("b", saturate(node, 1000, 3)));
  const Outcome outcome = read_outcome(tenants);
  end.store(true);
  flood.join();
  shm::detach(state);
  EXPECT_GE(outcome.busy_seconds[0] + outcome.busy_seconds[1], 0.9 * 3);
}

// Not a bound of the product: that is `bench`'s on a quiet machine. Printed for the record.
TEST(TurnsTest, the_gpu_idles_little_between_turns) {
  FakeNode node;
  node.start_broker();
  node.prepare("a", 10 * kGiB, 50);
  node.prepare("b", 10 * kGiB, 50);
  std::vector<std::unique_ptr<test::Child>> tenants;
  tenants.push_back(node.start_tenant("a", saturate(node, 100, 4)));
  tenants.push_back(node.start_tenant("b", saturate(node, 100, 4)));
  const Outcome outcome = read_outcome(tenants);
  std::vector<double> gaps_us, granted_us;
  for (size_t i = 1; i < outcome.turns.size(); ++i) {
    const Turn& before = outcome.turns[i - 1];
    const Turn& turn = outcome.turns[i];
    if (before.tenant == turn.tenant) continue;
    gaps_us.push_back((static_cast<double>(turn.first_ns) - static_cast<double>(before.drained_ns)) / 1e3);
    granted_us.push_back((static_cast<double>(turn.granted_ns) - static_cast<double>(before.drained_ns)) /
                         1e3);
  }
  ASSERT_GE(gaps_us.size(), 100u);
  std::sort(gaps_us.begin(), gaps_us.end());
  std::sort(granted_us.begin(), granted_us.end());
  printf(
      "%zu hand-overs: next granted %.1f us after the drain (median), %.1f us (p99); GPU idle %.1f us "
      "(median), "
      "%.1f us (p99)\n",
      gaps_us.size(), granted_us[granted_us.size() / 2], granted_us[granted_us.size() * 99 / 100],
      gaps_us[gaps_us.size() / 2], gaps_us[gaps_us.size() * 99 / 100]);
  // Without the broker's next grant a turn would end only after its idle grace and a 50 ms look.
  EXPECT_LE(gaps_us[gaps_us.size() / 2], 1000);
}

}  // namespace
