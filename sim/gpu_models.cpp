// SPDX-License-Identifier: Apache-2.0
#include "sim/gpu_models.h"

#include <cstring>

namespace sim {
namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr int kKiB = 1 << 10;

// memory_bytes is what cuDeviceTotalMem answers; with reserved_bytes it makes the total that NVML shows.
constexpr GpuModel kModels[] = {
    {.key = "a100",
     .name = "NVIDIA A100-SXM4-80GB",
     .memory_bytes = 81'152 * kMiB,
     .reserved_bytes = 768 * kMiB,
     .sm_count = 108,
     .cc_major = 8,
     .cc_minor = 0,
     .threads_per_sm = 2048,
     .blocks_per_sm = 32,
     .shared_per_sm_bytes = 164 * kKiB,
     .shared_per_block_optin_bytes = 163 * kKiB,
     .registers_per_sm = 65536,
     .l2_bytes = 40 * kKiB * kKiB,
     .clock_khz = 1'410'000,
     .memory_clock_khz = 1'593'000,
     .bus_width_bits = 5120,
     .power_limit_mw = 400'000},
    {.key = "h100",
     .name = "NVIDIA H100 80GB HBM3",
     .memory_bytes = 81'079 * kMiB,
     .reserved_bytes = 480 * kMiB,
     .sm_count = 132,
     .cc_major = 9,
     .cc_minor = 0,
     .threads_per_sm = 2048,
     .blocks_per_sm = 32,
     .shared_per_sm_bytes = 228 * kKiB,
     .shared_per_block_optin_bytes = 227 * kKiB,
     .registers_per_sm = 65536,
     .l2_bytes = 50 * kKiB * kKiB,
     .clock_khz = 1'980'000,
     .memory_clock_khz = 2'619'000,
     .bus_width_bits = 5120,
     .power_limit_mw = 700'000},
    {.key = "h200",
     .name = "NVIDIA H200",
     .memory_bytes = 143'167 * kMiB,
     .reserved_bytes = 604 * kMiB,
     .sm_count = 132,
     .cc_major = 9,
     .cc_minor = 0,
     .threads_per_sm = 2048,
     .blocks_per_sm = 32,
     .shared_per_sm_bytes = 228 * kKiB,
     .shared_per_block_optin_bytes = 227 * kKiB,
     .registers_per_sm = 65536,
     .l2_bytes = 60 * kKiB * kKiB,
     .clock_khz = 1'980'000,
     .memory_clock_khz = 3'201'000,
     .bus_width_bits = 6144,
     .power_limit_mw = 700'000},
    {.key = "l40s",
     .name = "NVIDIA L40S",
     .memory_bytes = 45'487 * kMiB,
     .reserved_bytes = 581 * kMiB,
     .sm_count = 142,
     .cc_major = 8,
     .cc_minor = 9,
     .threads_per_sm = 1536,
     .blocks_per_sm = 24,
     .shared_per_sm_bytes = 100 * kKiB,
     .shared_per_block_optin_bytes = 99 * kKiB,
     .registers_per_sm = 65536,
     .l2_bytes = 96 * kKiB * kKiB,
     .clock_khz = 2'520'000,
     .memory_clock_khz = 9'001'000,
     .bus_width_bits = 384,
     .power_limit_mw = 350'000},
    {.key = "b200",
     .name = "NVIDIA B200",
     .memory_bytes = 182'642 * kMiB,
     .reserved_bytes = 717 * kMiB,
     .sm_count = 148,
     .cc_major = 10,
     .cc_minor = 0,
     .threads_per_sm = 2048,
     .blocks_per_sm = 32,
     .shared_per_sm_bytes = 228 * kKiB,
     .shared_per_block_optin_bytes = 227 * kKiB,
     .registers_per_sm = 65536,
     .l2_bytes = 126 * kKiB * kKiB,
     .clock_khz = 1'965'000,
     .memory_clock_khz = 3'996'000,
     .bus_width_bits = 8192,
     .power_limit_mw = 1'000'000},
    // The most SMs of the cards offered; the key says so rather than repeat the long name.
    {.key = "sm188",
     .name = "NVIDIA RTX PRO 6000 Blackwell Server Edition",
     .memory_bytes = 97'253 * kMiB,
     .reserved_bytes = 634 * kMiB,
     .sm_count = 188,
     .cc_major = 12,
     .cc_minor = 0,
     .threads_per_sm = 1536,
     .blocks_per_sm = 24,
     .shared_per_sm_bytes = 100 * kKiB,
     .shared_per_block_optin_bytes = 99 * kKiB,
     .registers_per_sm = 65536,
     .l2_bytes = 128 * kKiB * kKiB,
     .clock_khz = 2'430'000,
     .memory_clock_khz = 12'481'000,
     .bus_width_bits = 512,
     .power_limit_mw = 600'000},
};

}  // namespace

const GpuModel* find_gpu_model(const char* key) {
  for (const GpuModel& model : kModels) {
    if (std::strcmp(model.key, key) == 0) return &model;
  }
  return nullptr;
}

int gpu_model_count() { return static_cast<int>(sizeof(kModels) / sizeof(kModels[0])); }

const GpuModel& gpu_model(int index) { return kModels[index]; }

}  // namespace sim
