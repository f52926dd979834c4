// SPDX-License-Identifier: Apache-2.0
//
// Arbitrary amounts, shares and wishes for slices: what is not refused was within bounds, and what is
// promised is there.
#include <cmath>

#include "broker/admission.h"
#include "broker/sizes.h"
#include "input.h"
#include "shm/layout.h"

namespace {

constexpr int kGpus = 4;

void parse(const std::string& text) {
  broker::MemoryAmount amount;
  if (broker::parse_memory(text, &amount).ok()) {
    HOLDS((amount.bytes > 0 && amount.bytes <= shm::kLedgerBytesMask) ||
          (amount.bytes == 0 && amount.percent > 0 && amount.percent <= 100));
    broker::format_bytes(amount.bytes);
  }
  uint32_t percent = 0;
  if (broker::parse_share(text, &percent).ok()) HOLDS(percent >= 1 && percent <= 100);
}

broker::Wish take_wish(fuzz::Input& input) {
  broker::Wish wish;
  for (int count = input.take<uint8_t>() % (kGpus + 2); count > 0; --count) {
    broker::GpuWish gpu;
    const auto kind = input.take<uint8_t>();
    if (kind % 3 == 1) gpu.gpu = std::to_string(input.take<uint8_t>() % (kGpus + 1));
    if (kind % 3 == 2) gpu.gpu = input.text();
    if (kind & 0x40) gpu.memory = broker::MemoryAmount{input.take<uint64_t>() & shm::kLedgerBytesMask, 0};
    if (kind & 0x80) gpu.memory = broker::MemoryAmount{0, 1 + input.take<uint16_t>() % 100 / 1.0};
    wish.gpus.push_back(std::move(gpu));
  }
  if (const auto percent = input.take<uint8_t>(); percent % 2 != 0)
    wish.compute_percent = input.take<uint32_t>();
  if (const auto percent = input.take<uint8_t>(); percent % 2 != 0)
    wish.compute_limit_percent = input.take<uint32_t>();
  wish.priority = input.take<uint8_t>() % 2 != 0;
  return wish;
}

void admit(fuzz::Input& input) {
  std::vector<broker::NodeGpu> gpus(kGpus);
  std::vector<uint64_t> context_bytes(kGpus);
  for (int i = 0; i < kGpus; ++i) {
    gpus[i].index = i;
    gpus[i].uuid_text = "GPU-" + std::to_string(i);
    gpus[i].device_bytes = (uint64_t{1} << 30) + (input.take<uint64_t>() & 0x3fffffffff);
    context_bytes[i] = input.take<uint32_t>();
  }
  std::vector<std::unique_ptr<broker::Terms>> promised;
  for (int slices = 0; slices < 16 && !input.empty(); ++slices) {
    broker::Admission admission(gpus, context_bytes);
    for (const auto& terms : promised) admission.promise("fuzzed", *terms);
    auto terms = std::make_unique<broker::Terms>();
    if (!admission.admit(take_wish(input), terms.get()).ok()) continue;
    HOLDS(!terms->gpus.empty() && terms->compute_percent >= 1 && terms->compute_percent <= 100 &&
          terms->compute_limit_percent >= terms->compute_percent && terms->compute_limit_percent <= 100);
    promised.push_back(std::move(terms));
  }
  for (const broker::NodeGpu& gpu : gpus) {
    uint64_t bytes = 0, compute = 0;
    for (const auto& terms : promised) {
      for (const broker::Grant& grant : terms->gpus) {
        if (grant.gpu != gpu.index) continue;
        bytes += grant.quota_bytes;
        compute += terms->compute_percent;
      }
    }
    HOLDS(bytes <= broker::usable_bytes(gpu) && compute <= 100);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  if (input.take<uint8_t>() % 2 == 0) {
    parse(std::string(reinterpret_cast<const char*>(data) + 1, size > 1 ? size - 1 : 0));
  } else {
    admit(input);
  }
  return 0;
}
