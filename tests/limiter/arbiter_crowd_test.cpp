// SPDX-License-Identifier: Apache-2.0
//
// The arbiter with many slices, many GPUs, kernels that can't be foreseen and a clock that jumps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

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

// From 20 µs to 50 ms, evenly on a logarithmic scale, all taken for kernels of their mean length.
model::Load one_function_of_uneven_kernels(std::mt19937& random) {
  model::Load load;
  load.kernel_ns = [&random] {
    const double part = static_cast<double>(random() % 100'000) / 1e5;
    return static_cast<uint64_t>(20e3 * std::pow(2500.0, part));
  };
  load.same_estimate_ns = static_cast<uint64_t>((50e6 - 20e3) / std::log(2500.0));
  return load;
}

// Estimates bound the run-ahead only; charged is what was measured, so that shares don't depend on them.
TEST(ArbiterCrowd, kernels_of_uneven_length_get_their_share) {
  for (const uint32_t share : {75, 30, 90}) {
    for (unsigned seed = 1; seed <= 3; seed++) {
      std::mt19937 random(seed);
      Node node;
      Tenant& first = node.add(share, one_function_of_uneven_kernels(random));
      Tenant& second = node.add(100 - share, one_function_of_uneven_kernels(random));
      first.start();
      second.start();
      node.clock.run_until(30 * kSecond);
      const uint64_t busy_ns = first.busy_ns() + second.busy_ns();
      EXPECT_NEAR(percent_of(first.busy_ns(), busy_ns), share, 1.0) << "seed " << seed;
    }
  }
}

// Longest wait: a quantum and a switch for each of the others, in every round; two rounds, as a slice may
// have been first in one and last in the next.
TEST(ArbiterCrowd, sixty_four_slices_share_one_gpu) {
  constexpr int kSlices = 64;
  Node node;
  std::vector<Tenant*> tenants;
  for (int i = 0; i < kSlices; i++) tenants.push_back(&node.add(1, model::saturating(200 * kMicrosecond)));
  for (Tenant* tenant : tenants) tenant->start();
  const uint64_t round_ns = kSlices * (node.settings.arbiter.quantum_ns + node.settings.switch_ns);
  node.clock.run_until(2 * round_ns);
  std::vector<uint64_t> before(kSlices, 0);
  for (int window = 0; window < 10; window++) {
    for (int i = 0; i < kSlices; i++) before[i] = tenants[i]->busy_ns();
    node.clock.run_until(node.clock.now_ns() + 2 * round_ns);
    for (int i = 0; i < kSlices; i++) EXPECT_GT(tenants[i]->busy_ns(), before[i]) << "slice " << i;
  }
  node.clock.run_until(30 * kSecond);
  // A turn more or less than the others is 5 ms of 469 ms.
  const double turn_percent = percent_of(node.settings.arbiter.quantum_ns, node.busy_ns());
  for (const Tenant* tenant : tenants)
    EXPECT_NEAR(percent_of(tenant->busy_ns(), node.busy_ns()), 100.0 / kSlices, 2 * turn_percent);
}

TEST(ArbiterCrowd, eight_gpus_are_shared_each_for_itself) {
  Node::Settings settings;
  settings.gpus = 8;
  Node node(settings);
  std::vector<Tenant*> tenants;
  for (int gpu = 0; gpu < 8; gpu++) {
    for (const uint32_t share : {70, 30})
      tenants.push_back(&node.add(share, model::saturating(kMillisecond), 100, uint64_t{1} << gpu));
  }
  for (Tenant* tenant : tenants) tenant->start();
  node.clock.run_until(10 * kSecond);
  for (size_t i = 0; i < tenants.size(); i += 2) {
    const uint64_t busy_ns = tenants[i]->busy_ns() + tenants[i + 1]->busy_ns();
    EXPECT_NEAR(percent_of(tenants[i]->busy_ns(), busy_ns), 70, 1.0) << "GPU " << i / 2;
    EXPECT_GE(percent_of(busy_ns, 10 * kSecond), 97.5) << "GPU " << i / 2;
  }
}

}  // namespace
