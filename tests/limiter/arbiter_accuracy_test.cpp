// SPDX-License-Identifier: Apache-2.0
//
// How exact the arbiter is, on the model: shares, how busy the GPU is kept, and how soon a change counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "limiter/arbiter.h"
#include "tests/limiter/gpu_model.h"

namespace {

using model::kMicrosecond;
using model::kMillisecond;
using model::kSecond;
using model::Node;
using model::Tenant;

double percent_of(uint64_t part_ns, uint64_t whole_ns) {
  return 100.0 * static_cast<double>(part_ns) / static_cast<double>(whole_ns);
}

struct Pair {
  uint32_t first, second;
  uint64_t kernel_ns;  // 0: mixed
};

std::string name_of(const Pair& pair) {
  const std::string kernels = pair.kernel_ns == 0 ? "mixed" : std::to_string(pair.kernel_ns / 1000) + "us";
  return std::to_string(pair.first) + "_" + std::to_string(pair.second) + "_" + kernels;
}

// Mixed: from 20 µs to 50 ms, evenly on a logarithmic scale.
model::Load load_of(const Pair& pair, std::mt19937& random) {
  if (pair.kernel_ns > 0) return model::saturating(pair.kernel_ns);
  model::Load load;
  load.kernel_ns = [&random] {
    return static_cast<uint64_t>(20e3 * std::pow(2500.0, static_cast<double>(random() % 100'000) / 1e5));
  };
  return load;
}

// How busy the driver's own time-slicing keeps the GPU.
double busy_without_slices(const Pair& pair, std::mt19937& random) {
  Node::Settings settings;
  settings.sliced = false;
  Node node(settings);
  for (int i = 0; i < 2; i++) node.add(50, load_of(pair, random)).start();
  node.clock.run_until(3 * kSecond);
  return percent_of(node.busy_ns(), 3 * kSecond);
}

class PairOfTenants : public testing::TestWithParam<Pair> {};

TEST_P(PairOfTenants, gets_exact_shares_of_a_busy_gpu) {
  std::mt19937 random(1);
  Node node;
  Tenant& first = node.add(GetParam().first, load_of(GetParam(), random));
  Tenant& second = node.add(GetParam().second, load_of(GetParam(), random));
  first.start();
  second.start();
  node.clock.run_until(500 * kMillisecond);
  const uint64_t first_before = first.busy_ns(), before = node.busy_ns();
  node.clock.run_until(10'500 * kMillisecond);
  const uint64_t busy_ns = node.busy_ns() - before;
  EXPECT_NEAR(percent_of(first.busy_ns() - first_before, busy_ns), GetParam().first, 1.0);
  const double quantum = static_cast<double>(node.settings.arbiter.quantum_ns);
  const double least = 100 * quantum / (quantum + static_cast<double>(node.settings.switch_ns)) - 0.3;
  EXPECT_GE(percent_of(busy_ns, 10 * kSecond), std::max(least, busy_without_slices(GetParam(), random)));
}

std::vector<Pair> all_pairs() {
  std::vector<Pair> pairs;
  for (const auto& [first, second] : {std::pair(75u, 25u), std::pair(30u, 70u), std::pair(90u, 10u)}) {
    for (const uint64_t us : {20, 50, 200, 1'000, 5'000, 20'000, 50'000, 0})
      pairs.push_back({first, second, us * kMicrosecond});
  }
  return pairs;
}

// One function whose kernels take from 20 µs to 50 ms: what is launched is never what it was taken for, and a
// slice must not go on for ever because its kernels do not end when they should.
TEST(ArbiterAccuracy, kernels_that_nobody_can_foretell_get_their_share) {
  for (const auto& [first_share, second_share] :
       {std::pair(75u, 25u), std::pair(30u, 70u), std::pair(90u, 10u)}) {
    // Learnt, or much too short, or too long.
    for (const uint64_t estimate_us : {0, 50, 1'000, 20'000}) {
      std::mt19937 random(1);
      model::Load load = load_of({first_share, second_share, 0}, random);
      load.one_function = estimate_us == 0;
      load.same_estimate_ns = estimate_us * kMicrosecond;
      Node node;
      Tenant& first = node.add(first_share, load);
      Tenant& second = node.add(second_share, load);
      first.start();
      second.start();
      node.clock.run_until(500 * kMillisecond);
      const uint64_t first_before = first.busy_ns(), before = node.busy_ns();
      node.clock.run_until(30'500 * kMillisecond);
      // Estimates that never learn let a turn of up to 2 ms / estimate kernels begin: a longer lag, not a
      // share that drifts.
      const double tolerance = load.one_function ? 1.0 : 2.0;
      EXPECT_NEAR(percent_of(first.busy_ns() - first_before, node.busy_ns() - before), first_share, tolerance)
          << first_share << "/" << second_share << ", estimate " << estimate_us << " us";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PairOfTenants, testing::ValuesIn(all_pairs()),
                         [](const auto& info) { return name_of(info.param); });

TEST(ArbiterAccuracy, eight_tenants_share_alike) {
  Node node;
  std::vector<Tenant*> tenants;
  for (int i = 0; i < 8; i++) tenants.push_back(&node.add(12, model::saturating(kMillisecond)));
  for (Tenant* tenant : tenants) tenant->start();
  node.clock.run_until(10 * kSecond);
  double squares = 0;
  for (const Tenant* tenant : tenants) {
    const double part = percent_of(tenant->busy_ns(), node.busy_ns());
    EXPECT_NEAR(part, 12.5, 1.0);
    squares += part * part;
  }
  EXPECT_GE(100.0 * 100.0 / (8 * squares), 0.999);  // Jain's index
}

// What a long kernel took beyond its turn is paid back, however long that takes.
TEST(ArbiterAccuracy, kernels_of_ten_seconds_are_paid_back) {
  Node node;
  Tenant& rare = node.add(30, model::saturating(10 * kSecond));
  Tenant& other = node.add(70, model::saturating(kMillisecond));
  rare.start();
  other.start();
  node.clock.run_until(600 * kSecond);
  // One kernel is 1.7 % of the time.
  EXPECT_NEAR(percent_of(rare.busy_ns(), node.busy_ns()), 30, 2.0);
}

// The longest time from `from_ns` to `to_ns` in which the tenant received nothing, to a tenth of a
// millisecond.
uint64_t longest_gap_ns(Node& node, const Tenant& tenant, uint64_t to_ns) {
  uint64_t longest_ns = 0, since_ns = node.clock.now_ns(), seen_ns = tenant.busy_ns();
  while (node.clock.now_ns() < to_ns) {
    node.clock.run_until(node.clock.now_ns() + 100 * kMicrosecond);
    if (tenant.busy_ns() != seen_ns) {
      seen_ns = tenant.busy_ns();
      since_ns = node.clock.now_ns();
    }
    longest_ns = std::max(longest_ns, node.clock.now_ns() - since_ns);
  }
  return longest_ns;
}

TEST(ArbiterAccuracy, shares_settle_within_a_tenth_of_a_second) {
  for (const uint32_t share : {50, 70, 25}) {
    for (const uint64_t kernel_ns : {50 * kMicrosecond, kMillisecond, 5 * kMillisecond}) {
      Node node;
      Tenant& there = node.add(share, model::saturating(kernel_ns));
      Tenant& comes = node.add(100 - share, model::saturating(kernel_ns));
      there.start();
      node.clock.run_until(3 * kSecond);
      comes.start();
      node.clock.run_until(3'100 * kMillisecond);
      const uint64_t before = there.busy_ns(), both = node.busy_ns();
      node.clock.run_until(4'100 * kMillisecond);
      EXPECT_NEAR(percent_of(there.busy_ns() - before, node.busy_ns() - both), share, 3.0) << kernel_ns;
    }
  }
}

// With equal shares nobody's turn is more than a quantum away, a kernel or two that were under way, and the
// switch.
TEST(ArbiterAccuracy, nobody_stalls_for_two_quanta) {
  Node node;
  Tenant& there = node.add(50, model::saturating(kMillisecond));
  Tenant& comes = node.add(50, model::saturating(kMillisecond));
  there.start();
  node.clock.run_until(3 * kSecond);
  comes.start();
  EXPECT_LE(longest_gap_ns(node, there, 3'500 * kMillisecond), 2 * node.settings.arbiter.quantum_ns);
  EXPECT_LE(longest_gap_ns(node, comes, 4 * kSecond), 2 * node.settings.arbiter.quantum_ns);
}

TEST(ArbiterAccuracy, other_shares_count_within_a_tenth_of_a_second) {
  Node node;
  Tenant& first = node.add(50, model::saturating(kMillisecond));
  Tenant& second = node.add(50, model::saturating(kMillisecond));
  first.start();
  second.start();
  uint64_t now_ns = 2 * kSecond;
  node.clock.run_until(now_ns);
  for (const uint32_t share : {80, 20, 65, 5}) {
    node.set(first, {1, share, 100, false});
    node.set(second, {1, 100 - share, 100, false});
    node.clock.run_until(now_ns += 100 * kMillisecond);
    const uint64_t before = first.busy_ns(), both = node.busy_ns();
    node.clock.run_until(now_ns += kSecond);
    EXPECT_NEAR(percent_of(first.busy_ns() - before, node.busy_ns() - both), share, 2.0);
  }
}

TEST(ArbiterAccuracy, another_cap_counts_within_a_tenth_of_a_second) {
  Node node;
  Tenant& alone = node.add(20, model::saturating(kMillisecond), 20);
  alone.start();
  uint64_t now_ns = kSecond;
  node.clock.run_until(now_ns);
  for (const uint32_t cap : {60, 30, 45, 100}) {
    node.set(alone, {1, 20, cap, false});
    node.clock.run_until(now_ns += 100 * kMillisecond);
    const uint64_t before = alone.busy_ns();
    node.clock.run_until(now_ns += kSecond);
    EXPECT_NEAR(percent_of(alone.busy_ns() - before, kSecond), cap, 1.0);
  }
}

}  // namespace
