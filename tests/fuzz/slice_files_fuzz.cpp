// SPDX-License-Identifier: Apache-2.0
//
// Arbitrary words in `limits` and `state`, and files that are cut: everything that a tenant, the broker and
// the command line read out of them stays in bounds, and the quota holds in whatever the lines say.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "broker/work_sum.h"
#include "ctl/snapshot.h"
#include "input.h"
#include "limiter/ledger.h"
#include "shm/segment.h"

namespace {

// A slice whose files are as new for each input.
class Files {
 public:
  Files() {
    std::string pattern = "/dev/shm/slice_files_fuzz.XXXXXX";
    HOLDS(mkdtemp(pattern.data()) != nullptr);
    directory_ = pattern;
    make();
  }
  ~Files() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  void renew(bool were_cut) {
    if (were_cut) {
      unmake();
      make();
      return;
    }
    HOLDS(madvise(limits_, sizeof *limits_, MADV_REMOVE) == 0);
    HOLDS(madvise(state_, sizeof *state_, MADV_REMOVE) == 0);
    memcpy(static_cast<void*>(limits_), new_limits_, sizeof new_limits_);
    memcpy(static_cast<void*>(state_), new_state_, sizeof new_state_);
  }

  const std::string& directory() const { return directory_; }
  shm::Limits& limits() { return *limits_; }
  shm::State& state() { return *state_; }

 private:
  void make() {
    shm::GpuTerms gpu = {};
    gpu.device_bytes = uint64_t{80} << 30;
    gpu.quota_bytes = uint64_t{10} << 30;
    gpu.context_bytes = 500 << 20;
    const shm::SliceTerms terms = {"fuzz", &gpu, 1, 25, 50, 0};
    HOLDS(shm::create(directory_.c_str(), terms, &limits_, &state_));
    memcpy(new_limits_, static_cast<void*>(limits_), sizeof new_limits_);
    memcpy(new_state_, static_cast<void*>(state_), sizeof new_state_);
  }
  void unmake() {
    shm::detach(limits_);
    shm::detach(state_);
    std::filesystem::remove(directory_ + "/limits");
    std::filesystem::remove(directory_ + "/state");
  }

  std::string directory_;
  shm::Limits* limits_ = nullptr;
  shm::State* state_ = nullptr;
  // All that is not 0 in new files.
  uint8_t new_limits_[offsetof(shm::Limits, slots)];
  uint8_t new_state_[offsetof(shm::State, doorbell)];
};

// Where words are written: all that is read, and of large arrays the start.
struct Region {
  size_t begin, stride, count;
};
constexpr Region kLimits[] = {{0, offsetof(shm::Limits, slots), 1},
                              {offsetof(shm::Limits, slots), sizeof(shm::SlotRecord), 8},
                              {offsetof(shm::Limits, overhead_bytes), sizeof(uint64_t), 8},
                              {0, sizeof(shm::Limits), 1}};
constexpr Region kState[] = {{0, offsetof(shm::State, refusals), 1},
                             {offsetof(shm::State, refusals), sizeof(shm::Refusal), 8},
                             {offsetof(shm::State, slots), sizeof(shm::Slot), 8},
                             {offsetof(shm::State, work), sizeof(shm::Work), 8},
                             {offsetof(shm::State, ledger), sizeof(shm::SlotLedger), 8},
                             {0, sizeof(shm::State), 1}};

template <size_t count>
void write_word(void* file, const Region (&regions)[count], fuzz::Input& input) {
  const Region& region = regions[input.take<uint8_t>() % count];
  const size_t entry = input.take<uint8_t>() % region.count;
  const size_t word = input.take<uint32_t>() % (region.stride / sizeof(uint64_t));
  const auto value = input.take<uint64_t>();
  memcpy(static_cast<uint8_t*>(file) + region.begin + entry * region.stride + word * sizeof value, &value,
         sizeof value);
}

void read_as_tenant(shm::Limits& limits, shm::State& state, fuzz::Input& input) {
  const int gpu = input.take<uint8_t>() % shm::kMaxGpus;
  const limiter::Usage usage = limiter::usage(limits, state, gpu);
  HOLDS(usage.free_bytes() <= usage.quota_bytes);

  limiter::SlotRef self;
  const limiter::ProcessIdentity identity = {1, 2, 3, "fuzz"};
  if (!limiter::take_slot(state, identity, &self)) return;
  HOLDS(self.slot < shm::kMaxSlots);
  // Requests of peers that are neither granted nor withdrawn make a caller wait, as they should.
  for (shm::SlotLedger& line : state.ledger[gpu]) {
    if (line.want.load() != 0) line.want.store(line.want.load() & ~shm::kLedgerBytesMask);
  }
  const auto bytes = input.take<uint64_t>() >> (input.take<uint8_t>() % 64);
  limiter::begin_call(state, gpu, self);
  if (limiter::reserve(limits, state, gpu, self, bytes) == limiter::Reservation::kGranted) {
    HOLDS(self.slot >= state.header.slots_high ||
          limiter::usage(limits, state, gpu).used_bytes() <= limits.gpus[gpu].quota_bytes);
    limiter::release(state, gpu, self, input.take<uint64_t>());
  }
  limiter::reserve_context(limits, state, gpu, self);
  limiter::add_managed(state, gpu, self, input.take<int32_t>());
  limiter::add_pooled(state, gpu, self, input.take<int32_t>());
  limiter::give_context(state, gpu, self);
  limiter::end_call(state, gpu, self);
  limiter::reap_slot(state, self.slot, self.generation);
}

void read_as_broker(shm::State& state, fuzz::Input& input) {
  broker::WorkSum sum;
  uint64_t now_ns = 1'000'000'000;
  uint64_t occupied_ns = 0;
  for (int look = 0; look < 3; ++look) {
    now_ns += input.take<uint32_t>();
    const limiter::Observation seen = sum.read(state, input.take<uint32_t>(), input.take<uint32_t>(), now_ns);
    HOLDS(seen.drained_ns <= now_ns && seen.occupied_ns >= occupied_ns);
    occupied_ns = seen.occupied_ns;
    state.work[look].occupied_ns.store(input.take<uint64_t>());
  }
  limiter::reap_slot(state, input.take<uint32_t>(), input.take<uint32_t>());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Files files;
  fuzz::Input input(data, size);
  const auto what = input.take<uint8_t>();
  const auto length = input.take<uint32_t>();
  for (int words = 0; !input.empty() && words < 64; ++words) {
    if (input.take<uint8_t>() % 2 == 0) {
      write_word(&files.limits(), kLimits, input);
    } else {
      write_word(&files.state(), kState, input);
    }
  }
  const bool cut = what % 8 == 7;
  if (cut) {
    const char* const file = what & 0x80 ? "/state" : "/limits";
    std::filesystem::resize_file(files.directory() + file, length % sizeof(shm::State));
  }
  ctl::SliceView view;
  if (ctl::read_slice(files.directory(), &view).ok()) {
    for (const ctl::GpuView& gpu : view.gpus) HOLDS(gpu.free_bytes() <= gpu.quota_bytes);
    HOLDS(view.processes.size() <= shm::kMaxSlots && view.refusals.size() <= shm::kMaxRefusals);
  }
  if (!cut) {
    fuzz::Input numbers(data, size);
    read_as_tenant(files.limits(), files.state(), numbers);
    read_as_broker(files.state(), numbers);
  }
  files.renew(cut);
  return 0;
}
