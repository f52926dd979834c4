// SPDX-License-Identifier: Apache-2.0
//
// Whether a slice fits, and what it then gets. Pure: numbers in, numbers or a reason out.
//
// What is promised is really there: the quotas on a GPU never add up to more than its memory less the node's
// reserve, the guaranteed shares never to more than 100. A slice with several GPUs takes its turns on all of
// them at once, so its share and those of all slices that share any of its GPUs must fit 100 together: A on
// GPUs 0 and 1, B on 1 and 2, C on 2 and 0 with 50 each pass every sum per GPU, and yet only one of the three
// can run at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/nvml.h"
#include "broker/sizes.h"
#include "broker/status.h"

namespace broker {

// Never promised: the driver's own needs that belong to no process grow with the GPU.
uint64_t node_reserve_bytes(uint64_t device_bytes);
inline uint64_t usable_bytes(const NodeGpu& gpu) {
  return gpu.device_bytes - node_reserve_bytes(gpu.device_bytes);
}

struct Grant {
  int gpu = 0;  // NodeGpu::index
  uint64_t quota_bytes = 0;
};

// What a slice has.
struct Terms {
  std::vector<Grant> gpus;
  uint32_t compute_percent = 0;
  uint32_t compute_limit_percent = 100;
  bool priority = false;
};

// What somebody asks for.
struct GpuWish {
  std::string gpu;  // UUID or index; empty: any
  std::optional<MemoryAmount> memory;
};
struct Wish {
  std::vector<GpuWish> gpus;  // none: one of any
  std::optional<uint32_t> compute_percent;
  std::optional<uint32_t> compute_limit_percent;
  bool priority = false;
};

// The GPUs of a node and what is promised of them.
class Admission {
 public:
  // `context_bytes[i]`: what a context takes on GPU i; a smaller quota holds no program at all.
  Admission(std::span<const NodeGpu> gpus, std::span<const uint64_t> context_bytes)
      : gpus_(gpus), context_bytes_(context_bytes) {}

  // Counts the terms of a slice that is there; both must outlive this.
  void promise(std::string_view slice, const Terms& terms) { promised_.push_back({slice, &terms}); }

  Status admit(const Wish& wish, Terms* terms) const;
  // Whether these exact terms fit beside what is promised.
  Status fits(const Terms& terms) const;

  uint64_t free_bytes(int gpu) const;
  uint32_t free_compute(int gpu) const;

 private:
  Status find_gpu(const std::string& name, int* gpu) const;
  Status complete(const Wish& wish, std::span<const int> gpus, Terms* terms) const;
  Status check_values(const Terms& terms) const;
  Status check_memory(const Terms& terms) const;
  Status check_compute(const Terms& terms) const;
  struct Promise {
    std::string_view slice;
    const Terms* terms;
  };

  std::string describe(int gpu) const;
  std::string describe_holders(const Terms& asked) const;

  std::span<const NodeGpu> gpus_;
  std::span<const uint64_t> context_bytes_;
  std::vector<Promise> promised_;
};

}  // namespace broker
