// SPDX-License-Identifier: Apache-2.0
//
// Whatever NVML lists for a process and whatever its line says, look after look: it is charged at least what
// is listed, exactly that once it has given something back, and the figures fit the words they go into.
#include <algorithm>

#include "broker/reconcile.h"
#include "input.h"

namespace {

// A line's bytes, mostly of a GPU's size.
uint64_t take_bytes(fuzz::Input& input) {
  return (input.take<uint64_t>() & shm::kLedgerBytesMask) >> (input.take<uint8_t>() % 48);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  broker::Measurement last;
  uint32_t generation = 0;
  limiter::SlotUse use = {};
  while (!input.empty()) {
    const auto what = input.take<uint8_t>();
    if (what % 16 == 0) {
      generation = (generation + 1) & 0xffff;
      use = {};
    }
    if (what & 0x10) use.held_bytes = take_bytes(input);
    if (what & 0x20) use.managed_bytes = take_bytes(input);
    if (what & 0x40) use.pooled_bytes = take_bytes(input);
    if (what & 0x80) ++use.releases;
    const uint64_t listed_bytes = input.take<uint64_t>() >> (input.take<uint8_t>() % 64);

    const broker::Measurement now = broker::measure(last, generation, use, listed_bytes);
    const uint64_t listed = std::min(listed_bytes, shm::kLedgerBytesMask);
    const uint64_t accounted = use.held_bytes - std::min(use.held_bytes, use.managed_bytes);
    const uint64_t charged = accounted + now.overhead_bytes;
    HOLDS(now.overhead_bytes <= shm::kLedgerBytesMask);
    HOLDS(charged >= listed && now.excess_bytes <= charged - listed);
    HOLDS(now.excess_bytes == (use.releases != 0 ? charged - listed : 0));
    const bool known = last.generation == generation;
    if (known && use.pooled_bytes == 0 && use.releases == last.releases)
      HOLDS(now.overhead_bytes >= last.overhead_bytes);
    if (!known || now.overhead_bytes > last.overhead_bytes) HOLDS(charged == std::max(listed, accounted));
    last = now;
  }
  return 0;
}
