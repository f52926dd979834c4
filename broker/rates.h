// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "shm/layout.h"

namespace broker {

// What a slice received and wanted per time, over the windows of shm::kRateWindowsS: from the sums of its
// account, noted once a second while it has work. Where nothing was noted, the sums grew evenly.
class Rates {
 public:
  static constexpr uint64_t kIntervalNs = 1'000'000'000;

  bool due(uint64_t now_ns) const { return count_ == 0 || now_ns - newest().at_ns >= kIntervalNs; }
  uint64_t due_ns() const { return count_ == 0 ? 0 : newest().at_ns + kIntervalNs; }
  // It had no work between the last two notes.
  bool settled() const { return count_ < 2 || newest().wanted_ns == point(1).wanted_ns; }
  // It has had work since the last note.
  bool moved(uint64_t wanted_ns) const { return count_ == 0 || wanted_ns != newest().wanted_ns; }

  void note(uint64_t received_ns, uint64_t wanted_ns, uint64_t now_ns) {
    points_[count_++ % points_.size()] = {now_ns, received_ns, wanted_ns};
  }

  uint64_t received_word() const { return word(&Point::received_ns); }
  uint64_t wanted_word() const { return word(&Point::wanted_ns); }

 private:
  struct Point {
    uint64_t at_ns, received_ns, wanted_ns;
  };

  const Point& point(uint64_t age) const { return points_[(count_ - 1 - age) % points_.size()]; }
  const Point& newest() const { return point(0); }

  uint64_t word(uint64_t Point::*sum) const {
    uint32_t hundredths[shm::kRateWindows] = {};
    for (int i = 0; i < shm::kRateWindows; ++i) {
      hundredths[i] =
          static_cast<uint32_t>(10'000 * part(sum, uint64_t{shm::kRateWindowsS[i]} * 1'000'000'000));
    }
    return shm::rates_word(hundredths);
  }

  // Of the window's time, or of the time since the first note.
  double part(uint64_t Point::*sum, uint64_t window_ns) const {
    if (count_ < 2) return 0;
    const uint64_t begin_ns = newest().at_ns - std::min(newest().at_ns, window_ns);
    const uint64_t kept = std::min<uint64_t>(count_, points_.size());
    uint64_t age = 1;
    while (age + 1 < kept && point(age).at_ns > begin_ns) ++age;
    const Point& before = point(age);
    const Point& after = point(age - 1);
    double missed = 0;  // what came between `before` and the window's begin
    if (before.at_ns < begin_ns && after.at_ns > before.at_ns) {
      missed = static_cast<double>(after.*sum - before.*sum) * static_cast<double>(begin_ns - before.at_ns) /
               static_cast<double>(after.at_ns - before.at_ns);
    }
    const uint64_t span_ns = newest().at_ns - std::max(begin_ns, before.at_ns);
    if (span_ns == 0) return 0;
    const double grown = static_cast<double>(newest().*sum - before.*sum) - missed;
    return std::clamp(grown / static_cast<double>(span_ns), 0.0, 1.0);
  }

  std::array<Point, 64> points_ = {};
  uint64_t count_ = 0;
};

}  // namespace broker
