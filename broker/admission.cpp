// SPDX-License-Identifier: Apache-2.0
#include "broker/admission.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "shm/layout.h"

namespace broker {
namespace {

// A quota made from 30 % is a byte less than that, and still 30 %.
constexpr double kRounding = 1e-6;

bool uses(const Terms& terms, int gpu) {
  return std::any_of(terms.gpus.begin(), terms.gpus.end(),
                     [&](const Grant& grant) { return grant.gpu == gpu; });
}

bool share_a_gpu(const Terms& a, const Terms& b) {
  return std::any_of(a.gpus.begin(), a.gpus.end(), [&](const Grant& grant) { return uses(b, grant.gpu); });
}

uint64_t bytes_of(const MemoryAmount& amount, uint64_t usable) {
  if (amount.bytes != 0) return amount.bytes;
  return static_cast<uint64_t>(std::floor(static_cast<double>(usable) * amount.percent / 100));
}

}  // namespace

uint64_t node_reserve_bytes(uint64_t device_bytes) {
  constexpr uint64_t kLeast = 256ull << 20;
  return std::min(device_bytes, std::max(device_bytes / 100, kLeast));
}

uint64_t Admission::free_bytes(int gpu) const {
  uint64_t promised = 0;
  for (const Promise& promise : promised_) {
    for (const Grant& grant : promise.terms->gpus) {
      if (grant.gpu == gpu) promised += grant.quota_bytes;
    }
  }
  const uint64_t usable = usable_bytes(gpus_[gpu]);
  return usable - std::min(usable, promised);
}

uint32_t Admission::free_compute(int gpu) const {
  uint32_t promised = 0;
  for (const Promise& promise : promised_) {
    if (uses(*promise.terms, gpu)) promised += promise.terms->compute_percent;
  }
  return 100 - std::min<uint32_t>(100, promised);
}

Status Admission::find_gpu(const std::string& name, int* found) const {
  const std::optional<Uuid> uuid = parse_uuid(name);
  int index = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool is_index = error == std::errc() && end == name.data() + name.size();
  for (const NodeGpu& gpu : gpus_) {
    if ((is_index && gpu.index == index) || (uuid && gpu.uuid == *uuid)) {
      *found = gpu.index;
      return {};
    }
  }
  std::string known;
  for (const NodeGpu& gpu : gpus_) {
    known += (known.empty() ? "" : ", ") + std::to_string(gpu.index) + " (" + gpu.uuid_text + ")";
  }
  return fail(Failure::kNotFound, "no GPU '" + name + "' on this node; there are: " + known);
}

Status Admission::admit(const Wish& wish, Terms* terms) const {
  if (gpus_.empty()) return fail(Failure::kFull, "this node has no GPU");
  const std::vector<GpuWish> any(1);
  const std::vector<GpuWish>& gpu_wishes = wish.gpus.empty() ? any : wish.gpus;
  if (gpu_wishes.size() > shm::kMaxGpus) {
    return fail(Failure::kInvalid, "a slice has at most " + std::to_string(shm::kMaxGpus) + " GPUs");
  }

  const auto unnamed =
      std::find_if(gpu_wishes.begin(), gpu_wishes.end(), [](const GpuWish& w) { return w.gpu.empty(); });
  if (unnamed == gpu_wishes.end()) {
    std::vector<int> gpus;
    for (const GpuWish& gpu_wish : gpu_wishes) {
      int gpu;
      if (Status found = find_gpu(gpu_wish.gpu, &gpu); !found.ok()) return found;
      gpus.push_back(gpu);
    }
    Status completed = complete(wish, gpus, terms);
    return completed.ok() ? fits(*terms) : completed;
  }
  if (gpu_wishes.size() > 1) {
    return fail(Failure::kInvalid, "a slice with several GPUs has to name each of them, by index or UUID");
  }

  // The fullest GPU that has room keeps the emptier ones for larger slices.
  std::vector<int> order;
  for (const NodeGpu& gpu : gpus_) order.push_back(gpu.index);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return free_bytes(a) < free_bytes(b); });
  const bool takes_what_is_free = !unnamed->memory && !wish.compute_percent;
  if (takes_what_is_free) std::reverse(order.begin(), order.end());
  Status refusal;
  for (const int gpu : order) {
    Status tried = complete(wish, std::span(&gpu, 1), terms);
    if (tried.ok()) tried = fits(*terms);
    if (tried.ok()) return tried;
    if (refusal.ok()) {
      refusal = tried;
    } else if (tried.text != refusal.text) {
      refusal.text += "; " + tried.text;
    }
  }
  return refusal;
}

// Fills in what the wish leaves open.
Status Admission::complete(const Wish& wish, std::span<const int> gpus, Terms* terms) const {
  *terms = {};
  terms->priority = wish.priority;
  terms->compute_limit_percent = wish.compute_limit_percent.value_or(100);

  double largest_part = 0;
  bool memory_given = false;
  for (size_t i = 0; i < gpus.size(); ++i) {
    const std::optional<MemoryAmount> memory = wish.gpus.empty() ? std::nullopt : wish.gpus[i].memory;
    const uint64_t usable = usable_bytes(gpus_[gpus[i]]);
    uint64_t quota;
    if (memory) {
      quota = bytes_of(*memory, usable);
      memory_given = true;
      largest_part = std::max(
          largest_part, static_cast<double>(quota) / static_cast<double>(std::max<uint64_t>(usable, 1)));
    } else if (wish.compute_percent) {
      quota = bytes_of({.bytes = 0, .percent = static_cast<double>(*wish.compute_percent)}, usable);
    } else {
      quota = free_bytes(gpus[i]);
    }
    terms->gpus.push_back({gpus[i], quota});
  }

  if (wish.compute_percent) {
    terms->compute_percent = *wish.compute_percent;
  } else if (memory_given) {
    terms->compute_percent = std::clamp(static_cast<uint32_t>(largest_part * 100 + kRounding), 1u, 100u);
    terms->compute_percent = std::min(terms->compute_percent, std::max(1u, terms->compute_limit_percent));
  } else {
    uint32_t free = 100;
    for (const int gpu : gpus) free = std::min(free, free_compute(gpu));
    if (free == 0) return fail(Failure::kFull, describe(gpus[0]));
    terms->compute_percent = std::min(free, std::max(1u, terms->compute_limit_percent));
  }
  return {};
}

Status Admission::fits(const Terms& terms) const {
  if (Status status = check_values(terms); !status.ok()) return status;
  if (Status status = check_memory(terms); !status.ok()) return status;
  return check_compute(terms);
}

Status Admission::check_values(const Terms& terms) const {
  if (terms.compute_percent < 1 || terms.compute_percent > 100) {
    return fail(Failure::kInvalid,
                "compute is " + std::to_string(terms.compute_percent) + ": allowed are 1 to 100");
  }
  if (terms.compute_limit_percent < terms.compute_percent || terms.compute_limit_percent > 100) {
    return fail(Failure::kInvalid, "the compute limit is " + std::to_string(terms.compute_limit_percent) +
                                       ": it can't be below compute (" +
                                       std::to_string(terms.compute_percent) + ") nor above 100");
  }
  for (size_t i = 0; i < terms.gpus.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (terms.gpus[i].gpu == terms.gpus[j].gpu) {
        return fail(Failure::kInvalid, "GPU " + std::to_string(terms.gpus[i].gpu) + " is named twice");
      }
    }
  }
  return {};
}

Status Admission::check_memory(const Terms& terms) const {
  for (const Grant& grant : terms.gpus) {
    const uint64_t context = context_bytes_[grant.gpu];
    if (grant.quota_bytes > free_bytes(grant.gpu)) {
      return fail(Failure::kFull, format_bytes(grant.quota_bytes) + " do not fit: " + describe(grant.gpu));
    }
    if (grant.quota_bytes < context) {
      return fail(grant.quota_bytes == free_bytes(grant.gpu) ? Failure::kFull : Failure::kInvalid,
                  format_bytes(grant.quota_bytes) + " are too small on GPU " + std::to_string(grant.gpu) +
                      ": a program's context alone takes " + format_bytes(context) + " there");
    }
  }
  return {};
}

Status Admission::check_compute(const Terms& terms) const {
  for (const Grant& grant : terms.gpus) {
    if (terms.compute_percent > free_compute(grant.gpu)) {
      return fail(Failure::kFull, std::to_string(terms.compute_percent) + " % of compute do not fit: " +
                                      describe(grant.gpu) + describe_holders(terms));
    }
  }

  std::vector<const Terms*> all = {&terms};
  for (const Promise& promise : promised_) all.push_back(promise.terms);
  for (const Terms* gang : all) {
    if (gang->gpus.size() < 2) continue;
    uint32_t sum = 0;
    for (const Terms* other : all) {
      if (share_a_gpu(*gang, *other)) sum += other->compute_percent;
    }
    if (sum > 100) {
      return fail(Failure::kFull,
                  std::to_string(terms.compute_percent) +
                      " % of compute do not fit: a slice that has several GPUs takes its turns on all of "
                      "them at once, and it and the slices that share a GPU with it would have " +
                      std::to_string(sum) + " % together" + describe_holders(terms));
    }
  }
  return {};
}

std::string Admission::describe(int gpu) const {
  return "GPU " + std::to_string(gpu) + " has " + format_bytes(free_bytes(gpu)) + " and " +
         std::to_string(free_compute(gpu)) + " % of compute free";
}

// Who has the compute that was asked for: those that have most of it first.
std::string Admission::describe_holders(const Terms& asked) const {
  constexpr size_t kMostNamed = 8;
  std::vector<Promise> holders;
  for (const Promise& promise : promised_) {
    if (share_a_gpu(asked, *promise.terms)) holders.push_back(promise);
  }
  if (holders.empty()) return "";
  std::stable_sort(holders.begin(), holders.end(), [](const Promise& left, const Promise& right) {
    return left.terms->compute_percent > right.terms->compute_percent;
  });
  std::string text = "; guaranteed are";
  for (size_t i = 0; i < std::min(holders.size(), kMostNamed); ++i) {
    text += (i > 0 ? ", " : " ") + std::to_string(holders[i].terms->compute_percent) + " % to ";
    text += holders[i].slice;
  }
  if (holders.size() > kMostNamed)
    text += " and less to " + std::to_string(holders.size() - kMostNamed) + " more";
  return text;
}

}  // namespace broker
