// SPDX-License-Identifier: Apache-2.0
//
// Kills tenants at random instants, four at a time, and measures how long it takes until the slice and the
// GPU have nothing left of them. Prints one JSON object; status 1 when something stayed for longer than ten
// seconds, when a tenant saw an error that it should not have seen, or when one did not die.
#include <algorithm>
#include <array>
#include <cstdio>

#include "storm.h"

namespace {

constexpr int kLanes = 4;
constexpr uint64_t kSecondNs = 1'000'000'000;
// Beyond this the storm goes no further; what is promised is a second, which the caller looks at.
constexpr uint64_t kPatienceNs = 10 * kSecondNs;
// Loading, attaching and making a context take some milliseconds. Half of the kills are meant for these, the
// others come at any time from the first instruction on.
constexpr uint64_t kLatestEarlyKillNs = 8'000'000;
constexpr uint64_t kLatestKillNs = 40'000'000;

struct Victim {
  std::unique_ptr<stress::Tenant> tenant;
  uint64_t kill_ns = 0;
};

struct Tally {
  uint64_t kills = 0, rounds = 0;
  std::array<uint64_t, 4> in_phase = {};  // stress::Phase at the moment of the kill
  uint64_t in_call = 0;                   // of those, in a call that takes or frees memory
  uint64_t operations = 0, refusals = 0;
  std::vector<uint64_t> back_ns;  // per round, from its last kill
};

void note(const stress::Report& report, Tally* tally) {
  tally->in_phase[std::min<size_t>(static_cast<size_t>(report.phase.load()), 3)]++;
  tally->in_call += report.in_call;
  tally->operations += report.operations;
  tally->refusals += report.refusals;
  tally->kills++;
}

void run_round(const stress::Options& options, const stress::Scene& scene, std::mt19937_64& random,
               Tally* tally) {
  const auto delay = [&] {
    const uint64_t latest = random() % 2 == 0 ? kLatestEarlyKillNs : kLatestKillNs;
    return std::uniform_int_distribution<uint64_t>(0, latest)(random);
  };
  std::array<Victim, kLanes> victims;
  for (Victim& victim : victims) {
    victim.tenant = std::make_unique<stress::Tenant>(options, random());
    victim.kill_ns = stress::now_ns() + delay();
  }
  std::sort(victims.begin(), victims.end(),
            [](const Victim& a, const Victim& b) { return a.kill_ns < b.kill_ns; });
  for (const Victim& victim : victims) {
    stress::sleep_until(victim.kill_ns);
    if (victim.tenant->ended()) stress::fail("a tenant ended by itself: see above");
    note(victim.tenant->report(), tally);
    victim.tenant->kill();
  }
  const uint64_t last_kill_ns = stress::now_ns();
  for (const Victim& victim : victims) {
    if (!victim.tenant->wait_until(last_kill_ns + kPatienceNs)) {
      stress::fail("pid " + std::to_string(victim.tenant->pid()) + " was killed and is still there");
    }
  }
  while (!scene.empty()) {
    if (stress::now_ns() - last_kill_ns > kPatienceNs) {
      stress::fail("not back after 10 s, after " + std::to_string(tally->kills) +
                   " kills: " + scene.describe());
    }
    stress::sleep_until(stress::now_ns() + 200'000);
  }
  tally->back_ns.push_back(stress::now_ns() - last_kill_ns);
  tally->rounds++;
}

}  // namespace

int main(int argc, char** argv) {
  const stress::Options options = stress::parse(argc, argv, "kill_storm SLICE PRELOAD TENANT SEED KILLS");
  const stress::Scene scene(options.slice);
  std::mt19937_64 random(options.seed);
  Tally tally;
  const uint64_t begin_ns = stress::now_ns();
  while (tally.kills < options.amount) run_round(options, scene, random, &tally);
  const double seconds = static_cast<double>(stress::now_ns() - begin_ns) / 1e9;

  std::sort(tally.back_ns.begin(), tally.back_ns.end());
  const auto milliseconds = [&](double part) {
    const auto at = static_cast<size_t>(part * static_cast<double>(tally.back_ns.size() - 1));
    return static_cast<double>(tally.back_ns[at]) / 1e6;
  };
  const nlohmann::json report = {{"kills", tally.kills},
                                 {"seconds", seconds},
                                 {"killed_while_loading", tally.in_phase[0]},
                                 {"killed_while_starting", tally.in_phase[1]},
                                 {"killed_while_running", tally.in_phase[2]},
                                 {"killed_in_a_call", tally.in_call},
                                 {"operations", tally.operations},
                                 {"refusals", tally.refusals},
                                 {"back_median_ms", milliseconds(0.5)},
                                 {"back_p99_ms", milliseconds(0.99)},
                                 {"back_longest_ms", milliseconds(1)}};
  printf("%s\nEXIT-SUCCESS\n", report.dump().c_str());
}
