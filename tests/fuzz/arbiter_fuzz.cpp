// SPDX-License-Identifier: Apache-2.0
//
// Arbitrary slices, observations and times for the arbiter: it decides in bounded time, about slices that
// there are, and gives no deadline without coming back to it.
#include <algorithm>
#include <map>

#include "input.h"
#include "limiter/arbiter.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  limiter::Arbiter arbiter;
  std::map<limiter::SliceKey, uint64_t> occupied_ns;  // of the slices that there are
  std::vector<limiter::Command> commands;
  uint64_t now_ns = 1'000'000'000;
  while (!input.empty()) {
    const auto what = input.take<uint8_t>();
    const limiter::SliceKey slice = input.take<uint8_t>() % 8;
    now_ns += input.take<uint32_t>() >> (input.take<uint8_t>() % 32);
    if (what % 8 == 0) {
      const limiter::ArbiterTerms terms = {
          .gpu_mask = uint64_t{1} << (input.take<uint8_t>() % 64) | (what >> 3),
          .compute_percent = 1u + input.take<uint8_t>() % 100,
          .compute_limit_percent = 1u + input.take<uint8_t>() % 100,
          .latency = what > 200};
      arbiter.set(slice, terms, now_ns);
      occupied_ns.emplace(slice, 0);
    } else if (what % 8 == 1) {
      arbiter.remove(slice);
      occupied_ns.erase(slice);
    } else {
      limiter::Observation seen;
      seen.contexts = input.take<uint8_t>() % 4;
      seen.waiting = what & 0x10;
      seen.outstanding = what & 0x20;
      seen.closing = what & 0x40;
      seen.drained_ns = now_ns - std::min<uint64_t>(now_ns, input.take<uint32_t>());
      seen.drain_expected_ns = now_ns + input.take<uint32_t>();
      if (const auto there = occupied_ns.find(slice); there != occupied_ns.end()) {
        there->second += input.take<uint32_t>();
        seen.occupied_ns = there->second;
      }
      arbiter.observe(slice, seen, now_ns);
    }
    commands.clear();
    arbiter.step(now_ns, &commands);
    for (const limiter::Command& command : commands) HOLDS(occupied_ns.contains(command.slice));
    const limiter::Account account = arbiter.account(slice);
    HOLDS(account.waited_ns <= now_ns && account.overruns <= account.turns);
  }
  return 0;
}
