// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "broker/belonging.h"
#include "broker/nvml.h"
#include "broker/process.h"

namespace broker {

// A process of a slice that uses a GPU past the slice's limits.
struct Bypass {
  enum class Kind : uint8_t {
    kNeverAttached,  // it has memory, and the slice does not know of it: no preload, or another way in
    kHoldsMore,      // it has more than it admits to, and more than the driver takes unasked
  };
  Kind kind = Kind::kNeverAttached;
  uint64_t key = 0;  // of the slice
  int node_gpu = 0;
  pid_t pid = 0;
  std::string name;
  uint64_t bytes = 0;  // that the slice does not know of
};

// Tells processes that bypass their slice from those that only look so for a moment: one that is just
// attaching, ends, or is in the middle of a call; memory that the driver took unasked; and processes that are
// in no slice, which are nobody's business here.
//
// Told what the driver lists at each look, and judges over several: nobody is named who was not seen twice, a
// second apart. Owned and called by the loop's thread.
class Backstop {
 public:
  using MarksOfSlices = std::function<std::vector<SliceMarks>()>;

  // `changed(key)`: the bypasses of that slice are others now.
  Backstop(MarksOfSlices marks_of_slices, std::function<void(uint64_t key)> changed);

  // A look: begin(), then what is seen on each GPU that could be looked at, then end(). end() is true if
  // somebody is to be looked at again in kSecondLookNs.
  static constexpr uint64_t kSecondLookNs = 1'000'000'000;
  void begin(uint64_t now_ns);
  void looked_at(int node_gpu);
  // A process that is attached to no slice that has the GPU.
  void saw_stranger(int node_gpu, const ProcessMemory& process);

  struct Member {
    uint64_t key;  // of the slice
    int node_gpu;
    uint32_t slot, generation;
    pid_t pid;
    uint64_t listed_bytes;
    uint64_t admitted_bytes;  // as its ledger says, without managed memory
    uint64_t context_bytes;   // what a context takes on the GPU
    bool quiescent;           // both figures are of the same moment
    bool slice_over_quota;    // by what the driver lists for all of its processes
  };
  void saw_member(const Member& member);
  bool end();

  std::vector<Bypass> bypasses(uint64_t key) const;
  // Kills the slice's bypassing processes, no other that may have got their pids.
  void kill(uint64_t key) const;
  void forget_slice(uint64_t key);

  // Strangers of a listing that belong to no slice.
  std::vector<ProcessMemory> unmanaged(const std::vector<ProcessMemory>& strangers) const;

 private:
  using Id = std::tuple<pid_t, int, Bypass::Kind>;  // process, GPU
  struct Suspicion {
    Bypass bypass;
    Process process;
    uint64_t first_ns = 0;
    int weight = 0;
    bool seen = false;  // in this look
    bool certain = false;
  };
  // What a member had when all of it was explained.
  struct Explained {
    uint32_t generation = 0;
    uint64_t listed_bytes = 0;
    uint64_t admitted_bytes = 0;
  };
  using MemberId = std::tuple<uint64_t, int, uint32_t>;  // slice, GPU, slot

  void suspect(const Bypass& bypass, int weight);
  const std::vector<SliceMarks>& marks();

  const MarksOfSlices marks_of_slices_;
  const std::function<void(uint64_t)> changed_;
  std::map<Id, Suspicion> suspicions_;
  std::map<MemberId, Explained> explained_;

  // Of the look under way.
  uint64_t now_ns_ = 0;
  std::vector<int> gpus_looked_at_;
  std::optional<std::vector<SliceMarks>> marks_;
};

}  // namespace broker
