// SPDX-License-Identifier: Apache-2.0
#include "limiter/contest.h"

#include <algorithm>

#include "limiter/gpu_mask.h"

namespace limiter {

bool Contest::needs_turns(std::vector<Member>& members, uint64_t window_ns) const {
  const auto is_pressed = [&](const Member& member) { return pressed(member, window_ns); };
  const auto pressed_count = std::count_if(members.begin(), members.end(), is_pressed);
  if (pressed_count >= 2) return true;

  const auto window = static_cast<double>(window_ns);
  double others = 0;
  for (Member& member : members) {
    if (is_pressed(member)) continue;
    member.behind_ns = 0;  // it had time left over
    others += static_cast<double>(std::min(member.occupied_ns, member.wanted_ns));
  }
  if (pressed_count == 0) return false;
  Member& member = *std::find_if(members.begin(), members.end(), is_pressed);
  // The driver gives it what the others leave, and no less than each of them.
  const double received = std::max(window / static_cast<double>(members.size()), window - others);
  member.behind_ns = std::max(0.0, member.behind_ns + member.guarantee * window - received);
  return member.behind_ns > static_cast<double>(settings_.quantum_ns);
}

void Contest::begin_turns(uint64_t gpu_mask, uint64_t now_ns) {
  for_each_gpu(gpu_mask, [&](int index) {
    Gpu& gpu = gpus_[index];
    const bool soon = gpu.hold_ns != 0 && now_ns - gpu.end_ns < gpu.hold_ns;
    gpu.hold_ns = soon ? std::min(2 * gpu.hold_ns, settings_.longest_hold_ns) : settings_.hold_ns;
    gpu.end_ns = now_ns + gpu.hold_ns;
  });
  turns_mask_ |= gpu_mask;
}

void Contest::renew_turns(uint64_t gpu_mask, uint64_t now_ns) {
  for_each_gpu(gpu_mask & turns_mask_,
               [&](int index) { gpus_[index].end_ns = now_ns + gpus_[index].hold_ns; });
}

void Contest::expire_turns(uint64_t gpu_mask, uint64_t now_ns) {
  for_each_gpu(gpu_mask & turns_mask_, [&](int index) {
    if (now_ns >= gpus_[index].end_ns) turns_mask_ &= ~(uint64_t{1} << index);
  });
}

uint64_t Contest::turns_end_ns(uint64_t gpu_mask) const {
  uint64_t end_ns = UINT64_MAX;
  for_each_gpu(gpu_mask & turns_mask_, [&](int index) { end_ns = std::min(end_ns, gpus_[index].end_ns); });
  return end_ns;
}

}  // namespace limiter
