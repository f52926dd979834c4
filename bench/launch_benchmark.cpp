// SPDX-License-Identifier: Apache-2.0
//
// What a call costs more with us in between, on a driver that costs nothing.
//
// The null driver's function is called directly and through libcuslice-cuda, both through a pointer, in short
// runs that alternate; what is shown is the median run. No broker: the slice is made here, and its gate is
// opened and shut here too. Not a GPU's figures, and not simulated ones: the driver does no work at all.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "shm/segment.h"

namespace {

constexpr int kRuns = 401;
constexpr int kLaunchesPerRun = 2'000;
constexpr int kAllocationsPerRun = 500;
constexpr size_t kAllocationBytes = 1 << 20;
constexpr int kLiveAllocations = 10'000;

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "launch_benchmark: %s\n", what.c_str());
  exit(1);
}

// The functions of one library, as a program that found them by dlsym has them.
struct Driver {
  explicit Driver(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) fail(path + ": " + dlerror());
    find(init, "cuInit");
    find(retain, "cuDevicePrimaryCtxRetain");
    find(set_current, "cuCtxSetCurrent");
    find(stream_create, "cuStreamCreate");
    find(launch, "cuLaunchKernel");
    find(allocate, "cuMemAlloc_v2");
    find(free, "cuMemFree_v2");
  }
  template <typename Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle, name));
    if (function == nullptr) fail(std::string(name) + " is not in the library");
  }

  void* handle;
  decltype(&cuInit) init;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuStreamCreate) stream_create;
  decltype(&cuLaunchKernel) launch;
  decltype(&cuMemAlloc_v2) allocate;
  decltype(&cuMemFree_v2) free;
};

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) fail(std::string(what) + ": CUDA error " + std::to_string(result));
}

// A slice on the null driver's device, in memory, removed at the end.
class Slice {
 public:
  Slice() {
    std::string pattern = "/dev/shm/launch_benchmark.XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) fail("cannot make a directory in /dev/shm");
    directory_ = pattern;
    shm::GpuTerms gpu = {};
    for (int i = 0; i < 16; ++i) gpu.uuid[i] = static_cast<uint8_t>(i + 1);
    gpu.device_bytes = gpu.quota_bytes = uint64_t{80} << 30;
    gpu.context_bytes = 512 << 20;
    const shm::SliceTerms terms = {"benchmark", &gpu, 1, 100, 100, 0};
    if (!shm::create(directory_.c_str(), terms, &limits_, &state_))
      fail("cannot make a slice in " + directory_);
  }
  ~Slice() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  Slice(const Slice&) = delete;
  Slice& operator=(const Slice&) = delete;

  const std::string& directory() const { return directory_; }

  void open() { set(shm::kOpen, shm::kGateOpen); }
  // A turn without an end and with room for anything: every launch is accounted for, none waits.
  void grant_turn() {
    limits_->gate.deadline_ns = shm::kNoDeadline;
    limits_->gate.run_ahead_ns = uint64_t{3600} * 1'000'000'000;
    limits_->gate.turn.fetch_add(1);
    set(shm::kTurn, shm::kGateShut);
  }

 private:
  void set(shm::GateMode mode, uint64_t flag) {
    limits_->gate.mode = mode;
    limits_->gate.gate = shm::gate_word(flag, ++epoch_);
    limits_->gate.grant.fetch_add(1);
  }

  std::string directory_;
  shm::Limits* limits_ = nullptr;
  shm::State* state_ = nullptr;
  uint64_t epoch_ = 0;
};

double run_ns(int calls, const std::function<void()>& run) {
  auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / calls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Comparison {
  double direct_ns;
  double ours_ns;
  double added_ns() const { return ours_ns - direct_ns; }
};

Comparison compare(int calls, const std::function<void()>& direct, const std::function<void()>& ours) {
  std::vector<double> direct_ns, ours_ns;
  direct();
  ours();
  for (int i = 0; i < kRuns; ++i) {
    direct_ns.push_back(run_ns(calls, direct));
    ours_ns.push_back(run_ns(calls, ours));
  }
  return {median(direct_ns), median(ours_ns)};
}

void launch_many(const Driver& driver, CUstream stream) {
  auto function = reinterpret_cast<CUfunction>(0x1000);
  void* parameters[1] = {};
  for (int i = 0; i < kLaunchesPerRun; ++i) {
    driver.launch(function, 64, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
  }
}

void allocate_many(const Driver& driver) {
  for (int i = 0; i < kAllocationsPerRun; ++i) {
    CUdeviceptr address = 0;
    check(driver.allocate(&address, kAllocationBytes), "cuMemAlloc");
    check(driver.free(address), "cuMemFree");
  }
}

void show(const char* what, const Comparison& comparison) {
  printf("%-44s %8.1f %8.1f %8.1f\n", what, comparison.direct_ns, comparison.ours_ns, comparison.added_ns());
}

}  // namespace

int main(int count, char** arguments) {
  bool as_json = count == 2 && std::string_view(arguments[1]) == "--json";
  if (count > 2 || (count == 2 && !as_json)) {
    fprintf(stderr, "usage: launch_benchmark [--json]\n");
    return 2;
  }
  const std::filesystem::path lib =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib";
  Slice slice;
  setenv("CUSLICE_SLICE", slice.directory().c_str(), 1);
  Driver direct(lib / "null" / "libcuda.so.1");
  Driver ours(lib / "libcuslice-cuda.so");

  CUcontext context = nullptr;
  CUstream stream = nullptr;
  check(ours.init(0), "cuInit in the slice");
  check(ours.retain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(ours.set_current(context), "cuCtxSetCurrent");
  check(ours.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");

  auto compare_launches = [&] {
    return compare(
        kLaunchesPerRun, [&] { launch_many(direct, stream); }, [&] { launch_many(ours, stream); });
  };
  auto compare_allocations = [&] {
    return compare(
        kAllocationsPerRun, [&] { allocate_many(direct); }, [&] { allocate_many(ours); });
  };
  slice.open();
  const Comparison open = compare_launches();
  slice.grant_turn();
  const Comparison turn = compare_launches();
  slice.open();
  const Comparison none_live = compare_allocations();
  for (int i = 0; i < kLiveAllocations; ++i) {
    CUdeviceptr address = 0;
    check(ours.allocate(&address, kAllocationBytes), "cuMemAlloc");
  }
  const Comparison many_live = compare_allocations();

  if (as_json) {
    const nlohmann::json report = {{"driver", "null"},
                                   {"runs", kRuns},
                                   {"launch_direct_ns", open.direct_ns},
                                   {"launch_added_ns", open.added_ns()},
                                   {"launch_in_turn_added_ns", turn.added_ns()},
                                   {"alloc_free_direct_ns", none_live.direct_ns},
                                   {"alloc_free_added_ns", none_live.added_ns()},
                                   {"alloc_free_10000_live_added_ns", many_live.added_ns()}};
    printf("%s\n", report.dump(2).c_str());
    return 0;
  }
  printf("ns per call on a driver that costs nothing; median of %d runs\n", kRuns);
  printf("%-44s %8s %8s %8s\n", "", "direct", "ours", "added");
  show("cuLaunchKernel, gate open", open);
  show("cuLaunchKernel, in a turn", turn);
  show("cuMemAlloc + cuMemFree, nothing else live", none_live);
  show("cuMemAlloc + cuMemFree, 10,000 live", many_live);
  return 0;
}
