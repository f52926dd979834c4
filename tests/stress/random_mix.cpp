// SPDX-License-Identifier: Apache-2.0
//
// Eight tenants take and free memory by every API for some seconds, killed and replaced at random. All the
// time, what the GPU has in use is compared with the slice's quota; then the tenants hold what they hold, and
// what cuslice charges is compared with what the driver says. Prints one JSON object.
#include <algorithm>
#include <cstdio>

#include "storm.h"

namespace {

constexpr int kLanes = 8;
constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kSampleNs = 1'000'000;
constexpr uint64_t kMeanLifeNs = kSecondNs;
// The broker looks every second while anything changes. What is promised is that it comes out right.
constexpr uint64_t kSettleNs = 20 * kSecondNs;

struct Lane {
  std::unique_ptr<stress::Tenant> tenant;
  uint64_t end_ns = 0;
};

struct Tally {
  uint64_t starts = 0, kills = 0, samples = 0, operations = 0, refusals = 0;
  uint64_t most_used_bytes = 0, most_over_bytes = 0;
};

void count(const stress::Report& report, Tally* tally) {
  tally->operations += report.operations;
  tally->refusals += report.refusals;
}

void start(const stress::Options& options, std::mt19937_64& random, Lane* lane, Tally* tally) {
  std::exponential_distribution<double> life(1.0 / static_cast<double>(kMeanLifeNs));
  lane->tenant = std::make_unique<stress::Tenant>(options, random());
  lane->end_ns = stress::now_ns() + static_cast<uint64_t>(life(random));
  tally->starts++;
}

void sample(const stress::Scene& scene, Tally* tally) {
  const uint64_t used = scene.used_bytes();
  const uint64_t quota = scene.quota_bytes();
  tally->samples++;
  tally->most_used_bytes = std::max(tally->most_used_bytes, used);
  if (used > quota) tally->most_over_bytes = std::max(tally->most_over_bytes, used - quota);
}

void wait_until_paused(const Lane& lane) {
  const uint64_t deadline_ns = stress::now_ns() + 20 * kSecondNs;
  bool told = false;
  while (lane.tenant->report().phase != stress::Phase::kPaused) {
    if (lane.tenant->ended()) stress::fail("a tenant ended by itself: see above");
    if (stress::now_ns() > deadline_ns) stress::fail("a tenant is stuck in a call");
    // Not before it is there to hear it.
    if (!told && lane.tenant->report().phase != stress::Phase::kLoading) {
      lane.tenant->pause();
      told = true;
    }
    stress::sleep_until(stress::now_ns() + kSampleNs);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const stress::Options options = stress::parse(argc, argv, "random_mix SLICE PRELOAD TENANT SEED SECONDS");
  const stress::Scene scene(options.slice);
  std::mt19937_64 random(options.seed);
  Tally tally;
  std::vector<Lane> lanes(kLanes);
  for (Lane& lane : lanes) start(options, random, &lane, &tally);

  const uint64_t end_ns = stress::now_ns() + options.amount * kSecondNs;
  while (stress::now_ns() < end_ns) {
    sample(scene, &tally);
    for (Lane& lane : lanes) {
      if (lane.tenant->ended()) stress::fail("a tenant ended by itself: see above");
      if (stress::now_ns() < lane.end_ns) continue;
      count(lane.tenant->report(), &tally);
      tally.kills++;
      start(options, random, &lane, &tally);
    }
    stress::sleep_until(stress::now_ns() + kSampleNs);
  }

  for (const Lane& lane : lanes) wait_until_paused(lane);
  for (const Lane& lane : lanes) count(lane.tenant->report(), &tally);
  const uint64_t paused_ns = stress::now_ns();
  uint64_t settled_ns = paused_ns;
  while (scene.error_bytes() != 0 && settled_ns - paused_ns < kSettleNs) {
    stress::sleep_until(stress::now_ns() + 10 * kSampleNs);
    settled_ns = stress::now_ns();
  }
  const uint64_t error_bytes = scene.error_bytes();
  const uint64_t held_bytes = scene.used_bytes();
  if (error_bytes != 0) fprintf(stderr, "%s\n", scene.describe().c_str());

  lanes.clear();
  const uint64_t killed_ns = stress::now_ns();
  while (!scene.empty()) {
    if (stress::now_ns() - killed_ns > 5 * kSecondNs) stress::fail("not back after 5 s: " + scene.describe());
    stress::sleep_until(stress::now_ns() + 200'000);
  }
  const nlohmann::json report = {{"tenants", tally.starts},
                                 {"kills", tally.kills},
                                 {"operations", tally.operations},
                                 {"refusals", tally.refusals},
                                 {"samples", tally.samples},
                                 {"quota_bytes", scene.quota_bytes()},
                                 {"most_used_bytes", tally.most_used_bytes},
                                 {"most_over_bytes", tally.most_over_bytes},
                                 {"held_when_settled_bytes", held_bytes},
                                 {"error_bytes", error_bytes},
                                 {"settled_s", static_cast<double>(settled_ns - paused_ns) / 1e9},
                                 {"back_ms", static_cast<double>(stress::now_ns() - killed_ns) / 1e6}};
  printf("%s\nEXIT-SUCCESS\n", report.dump().c_str());
}
