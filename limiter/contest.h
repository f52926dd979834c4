// SPDX-License-Identifier: Apache-2.0
//
// Whether slices that share GPUs need turns.
//
// As long as all of them get what they are guaranteed, or all that they want, none needs one: the driver
// interleaves them, and loses less time than turns would between slices that have nothing to run now and
// then. Two that could each use the GPU all the time gain by turns: shares are exact, and contexts are
// switched less often. One alone needs them if the others keep it below its guarantee.
//
// Pure; told of times and figures. The state is per GPU; a mask names the GPUs of a group of slices that
// share some, directly or through others. Turns that had to come back soon after they ended stay longer the
// next time, so that a load at the border does not go to and fro.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace limiter {

class Contest {
 public:
  struct Settings {
    uint64_t quantum_ns;
    uint64_t hold_ns = 100'000'000;  // turns end after so long without need, at first
    uint64_t longest_hold_ns = 3'200'000'000;
  };

  // What a slice of the group wanted and got during a window.
  struct Member {
    double guarantee = 0;      // part of the GPU, 0 .. 1
    uint64_t wanted_ns = 0;    // with work outstanding, or with a launch waiting
    uint64_t occupied_ns = 0;  // GPU time of its work, at most; other slices' may be in it
    double behind_ns = 0;      // what it lacks of its guarantee, from the windows before this one
  };

  explicit Contest(const Settings& settings) : settings_(settings) {}

  // Long enough that a pause of the host is not taken for a lack of work, nor the reverse.
  uint64_t window_ns() const { return 4 * settings_.quantum_ns; }

  // It could have used the GPU all the time.
  static bool pressed(const Member& member, uint64_t window_ns) {
    return member.wanted_ns >= window_ns / 10 * 9;
  }
  // Without turns during the window: are they needed now? Carries behind_ns on.
  bool needs_turns(std::vector<Member>& members, uint64_t window_ns) const;

  bool in_turns(uint64_t gpu_mask) const { return (turns_mask_ & gpu_mask) != 0; }
  void begin_turns(uint64_t gpu_mask, uint64_t now_ns);
  // They are still needed.
  void renew_turns(uint64_t gpu_mask, uint64_t now_ns);
  // Ends them if they were not needed for long enough.
  void expire_turns(uint64_t gpu_mask, uint64_t now_ns);
  // When expire_turns() will, if nobody renews them; UINT64_MAX: there are none.
  uint64_t turns_end_ns(uint64_t gpu_mask) const;

 private:
  struct Gpu {
    uint64_t hold_ns = 0;
    uint64_t end_ns = 0;  // of the turns, or of the last ones
  };

  const Settings settings_;
  uint64_t turns_mask_ = 0;
  std::array<Gpu, 64> gpus_ = {};
};

}  // namespace limiter
