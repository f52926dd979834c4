// SPDX-License-Identifier: Apache-2.0
//
// How long launches take: an online estimate per key, which stands for a function and its launch shape.
//
// A table of fixed size, without locks or memory of its own. Any thread may look up at any time; samples may
// come from any thread, but two at the same key at the same moment may count as one. A full neighbourhood
// forgets one of its keys: the worst is that a function has to be measured anew. Zero bytes are an empty
// table.
#pragma once

#include <atomic>
#include <cstdint>

namespace limiter {

// Mixes the words that make up a launch into a key; never 0.
constexpr uint64_t launch_key(uint64_t word) {
  uint64_t mixed = word * 0x9e3779b97f4a7c15;
  return (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93 | 1;
}
template <typename... Rest>
constexpr uint64_t launch_key(uint64_t first, uint64_t second, Rest... rest) {
  return launch_key(launch_key(first) ^ second, rest...);
}

class KernelEstimates {
 public:
  // What a launch is taken for before it was measured: long, so that few of an unknown kind are under way at
  // once.
  static constexpr uint64_t kUnknownNs = 1'000'000;
  static constexpr uint32_t kFirstSamples = 3;     // measured at once
  static constexpr uint32_t kSampleInterval = 64;  // then one launch in so many

  struct Estimate {
    uint64_t ns;
    bool wants_sample;
  };

  // Counts a launch of the key and says what to expect of it.
  Estimate expect(uint64_t key) {
    Entry& entry = find(key);
    uint32_t samples = entry.samples.load(std::memory_order_relaxed);
    uint32_t unsampled = entry.unsampled.load(std::memory_order_relaxed) + 1;
    entry.unsampled.store(unsampled, std::memory_order_relaxed);
    uint64_t ns = samples == 0 ? kUnknownNs : entry.mean_ns.load(std::memory_order_relaxed);
    return {ns, samples < kFirstSamples || unsampled >= kSampleInterval};
  }

  // To be called when a launch of the key is about to be measured: the next ones need not be.
  void sampling(uint64_t key) { find(key).unsampled.store(0, std::memory_order_relaxed); }

  // The key stands for something else from now on.
  void forget(uint64_t key) { clear(find(key)); }
  // Any key may: what is known is kept, and measured at the key's next launch.
  void doubt_all() {
    for (Entry& entry : entries_) entry.unsampled.store(kSampleInterval, std::memory_order_relaxed);
  }

  // A launch of the key took so long on the GPU. The first samples are averaged; later ones move the mean by
  // an eighth, or by half if they are off by more than twice (the same function was given other work).
  void sample(uint64_t key, uint64_t ns) {
    Entry& entry = find(key);
    uint32_t samples = entry.samples.load(std::memory_order_relaxed);
    auto mean = static_cast<int64_t>(entry.mean_ns.load(std::memory_order_relaxed));
    auto measured = static_cast<int64_t>(ns < kLongestNs ? ns : kLongestNs);
    bool far_off = measured > 2 * mean || mean > 2 * measured;
    int64_t part = samples >= 2 && far_off ? 2 : samples < kAveraged ? samples + 1 : kAveraged;
    move(entry, mean + (measured - mean) / part, samples);
  }

  // The same, but other contexts ran too, perhaps in the middle of it: it is the shorter of several that is
  // right. Only a row of samples that all say more than twice the mean raises it by much.
  void sample_beside_others(uint64_t key, uint64_t ns) {
    Entry& entry = find(key);
    uint32_t samples = entry.samples.load(std::memory_order_relaxed);
    auto mean = entry.mean_ns.load(std::memory_order_relaxed);
    if (samples > 0 && ns > 2 * mean) {
      uint32_t longer = entry.longer.load(std::memory_order_relaxed) + 1;
      entry.longer.store(longer, std::memory_order_relaxed);
      if (longer < kLongerInARow) return;
    }
    entry.longer.store(0, std::memory_order_relaxed);
    if (samples > 0 && ns < mean / 2) return move(entry, static_cast<int64_t>(ns), samples);
    sample(key, ns);
  }

  // The same, and nobody knows whether other contexts ran too, or for how long: it only ever lowers the mean.
  void sample_unarbitrated(uint64_t key, uint64_t ns) {
    const Entry& entry = find(key);
    if (entry.samples.load(std::memory_order_relaxed) == 0 ||
        ns < entry.mean_ns.load(std::memory_order_relaxed))
      sample(key, ns);
  }

 private:
  struct Entry {
    std::atomic<uint64_t> key;
    std::atomic<uint64_t> mean_ns;
    std::atomic<uint32_t> samples;    // up to kAveraged
    std::atomic<uint32_t> unsampled;  // launches since the last that was measured
    std::atomic<uint32_t> longer;     // samples beside others in a row that were not believed
  };
  static constexpr uint32_t kEntries = 4096;  // a power of two
  static constexpr uint32_t kReach = 8;       // entries from its home in which a key may be
  static constexpr uint32_t kAveraged = 8;    // samples of which the mean is a plain one
  static constexpr uint32_t kLongerInARow = 4;
  static constexpr uint64_t kLongestNs = 3600'000'000'000;

  static void move(Entry& entry, int64_t mean_ns, uint32_t samples) {
    entry.mean_ns.store(static_cast<uint64_t>(mean_ns), std::memory_order_relaxed);
    if (samples < kAveraged) entry.samples.store(samples + 1, std::memory_order_relaxed);
  }

  static void clear(Entry& entry) {
    entry.samples.store(0, std::memory_order_relaxed);
    entry.mean_ns.store(0, std::memory_order_relaxed);
    entry.unsampled.store(0, std::memory_order_relaxed);
    entry.longer.store(0, std::memory_order_relaxed);
  }

  Entry& find(uint64_t key) {
    uint64_t home = key >> 20;
    for (uint32_t i = 0; i < kReach; ++i) {
      Entry& entry = entries_[(home + i) % kEntries];
      uint64_t found = entry.key.load(std::memory_order_relaxed);
      if (found == key) return entry;
      if (found == 0 &&
          (entry.key.compare_exchange_strong(found, key, std::memory_order_relaxed) || found == key))
        return entry;
    }
    Entry& victim = entries_[(home + key % kReach) % kEntries];
    clear(victim);
    victim.key.store(key, std::memory_order_relaxed);
    return victim;
  }

  Entry entries_[kEntries];
};

}  // namespace limiter
