// SPDX-License-Identifier: Apache-2.0
//
// What an allocation and its free cost more in a slice whose quota is open, on a driver that costs nothing:
// with 1, 4 and 16 threads, in 1 and 8 processes, and with few or many processes attached.
//
// Counted is the CPU time of the thread that calls, not the clock on the wall: with more threads than cores
// the latter would measure the scheduler. Waiting for a cache line that another core has is CPU time.
//
// The same calls are then made under a filter that ends the thread at any system call (strict seccomp): there
// is no lock to sleep on, nor any other call into the kernel.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "limiter/ledger.h"
#include "shm/segment.h"

namespace {

constexpr int kRuns = 61;
constexpr int kPairsPerRun = 500;
constexpr int kMostProcesses = 8;
constexpr int kMostThreads = 16;
constexpr size_t kAllocationBytes = 1 << 20;

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "ledger_benchmark: %s\n", what.c_str());
  exit(1);
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) fail(std::string(what) + ": CUDA error " + std::to_string(result));
}

struct Driver {
  explicit Driver(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) fail(path + ": " + dlerror());
    find(init, "cuInit");
    find(retain, "cuDevicePrimaryCtxRetain");
    find(set_current, "cuCtxSetCurrent");
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
  decltype(&cuMemAlloc_v2) allocate;
  decltype(&cuMemFree_v2) free;
};

// A slice on the null driver's device, without a broker, in which `attached` slots are taken by others.
class Slice {
 public:
  explicit Slice(uint32_t attached) {
    std::string pattern = "/dev/shm/ledger_benchmark.XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) fail("cannot make a directory in /dev/shm");
    directory_ = pattern;
    shm::GpuTerms gpu = {};
    for (int i = 0; i < 16; ++i) gpu.uuid[i] = static_cast<uint8_t>(i + 1);
    gpu.device_bytes = gpu.quota_bytes = uint64_t{1} << 46;
    gpu.context_bytes = 512 << 20;
    const shm::SliceTerms terms = {"benchmark", &gpu, 1, 100, 100, 0};
    if (!shm::create(directory_.c_str(), terms, &limits_, &state_)) fail("cannot make " + directory_);
    // In a namespace of their own, so that nobody here takes them for dead.
    limiter::ProcessIdentity peer = {.pid = 1, .pid_namespace = 1, .start_time = 1, .name = "peer"};
    for (uint32_t i = 0; i < attached; ++i) {
      limiter::SlotRef slot;
      if (!limiter::take_slot(*state_, peer, &slot)) fail("no slot is free");
      if (limiter::reserve(*limits_, *state_, 0, slot, 1 << 20) != limiter::Reservation::kGranted)
        fail("a peer was refused");
    }
  }
  ~Slice() {
    shm::detach(limits_);
    shm::detach(state_);
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  Slice(const Slice&) = delete;
  Slice& operator=(const Slice&) = delete;

  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  shm::Limits* limits_ = nullptr;
  shm::State* state_ = nullptr;
};

// Shared by the processes of a case: medians of each thread, and the meeting point before each run.
struct Results {
  std::atomic<int> arrived;
  std::atomic<int> silent;  // threads that made their calls under the filter
  double direct_ns[kMostProcesses * kMostThreads];
  double ours_ns[kMostProcesses * kMostThreads];
};

struct Case {
  int processes, threads;
  uint32_t attached;  // processes in all
};

double cpu_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void allocate_many(const Driver& driver) {
  for (int i = 0; i < kPairsPerRun; ++i) {
    CUdeviceptr address = 0;
    check(driver.allocate(&address, kAllocationBytes), "cuMemAlloc");
    check(driver.free(address), "cuMemFree");
  }
}

double pair_ns(const Driver& driver) {
  const double begin_ns = cpu_ns();
  allocate_many(driver);
  return (cpu_ns() - begin_ns) / kPairsPerRun;
}

void measure(const Driver& direct, const Driver& ours, CUcontext context, const Case& of, int index,
             Results* results) {
  check(ours.set_current(context), "cuCtxSetCurrent");
  pair_ns(direct);
  pair_ns(ours);
  results->arrived.fetch_add(1);
  while (results->arrived.load() < of.processes * of.threads) std::this_thread::yield();
  std::vector<double> direct_ns, ours_ns;
  for (int i = 0; i < kRuns; ++i) {
    direct_ns.push_back(pair_ns(direct));
    ours_ns.push_back(pair_ns(ours));
  }
  results->direct_ns[index] = median(direct_ns);
  results->ours_ns[index] = median(ours_ns);

  // The filter is of the thread, and for the rest of its life: a thread of its own, which ends by the bare
  // call.
  std::thread([&ours, context, results] {
    check(ours.set_current(context), "cuCtxSetCurrent");
    allocate_many(ours);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) return;
    allocate_many(ours);
    results->silent.fetch_add(1);
    syscall(SYS_exit, 0);
  }).detach();
}

// One process of a case. What others of it do meanwhile is part of the measurement.
int run_process(const std::filesystem::path& lib, const Slice& slice, const Case& of, int process,
                Results* results) {
  setenv("CUSLICE_SLICE", slice.directory().c_str(), 1);
  const Driver direct(lib / "null" / "libcuda.so.1");
  const Driver ours(lib / "libcuslice-cuda.so");
  CUcontext context = nullptr;
  check(ours.init(0), "cuInit in the slice");
  check(ours.retain(&context, 0), "cuDevicePrimaryCtxRetain");
  std::vector<std::thread> threads;
  for (int i = 0; i < of.threads; ++i) {
    threads.emplace_back([&, i] { measure(direct, ours, context, of, process * of.threads + i, results); });
  }
  for (std::thread& thread : threads) thread.join();
  // A thread that the filter has ended never comes to count itself.
  for (int i = 0; i < 10'000 && results->silent.load() < of.processes * of.threads; ++i) usleep(1000);
  return 0;
}

struct Outcome {
  double direct_ns, ours_ns;
  bool silent;
  double added_ns() const { return ours_ns - direct_ns; }
};

Outcome run_case(const std::filesystem::path& lib, const Case& of) {
  const Slice slice(of.attached - static_cast<uint32_t>(of.processes));
  void* const memory =
      mmap(nullptr, sizeof(Results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap failed");
  auto* const results = new (memory) Results{};
  std::vector<pid_t> children;
  for (int i = 0; i < of.processes; ++i) {
    const pid_t child = fork();
    if (child < 0) fail("fork failed");
    if (child == 0) _exit(run_process(lib, slice, of, i, results));
    children.push_back(child);
  }
  bool ended_well = true;
  for (const pid_t child : children) {
    int status = 0;
    ended_well &= waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (!ended_well) fail("a process of the benchmark failed");
  const int threads = of.processes * of.threads;
  const Outcome outcome = {median({results->direct_ns, results->direct_ns + threads}),
                           median({results->ours_ns, results->ours_ns + threads}),
                           results->silent.load() == threads};
  munmap(memory, sizeof(Results));
  return outcome;
}

}  // namespace

int main(int count, char** arguments) {
  const bool as_json = count == 2 && std::string_view(arguments[1]) == "--json";
  if (count > 2 || (count == 2 && !as_json)) {
    fprintf(stderr, "usage: ledger_benchmark [--json]\n");
    return 2;
  }
  const std::filesystem::path lib =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib";
  constexpr Case kCases[] = {{1, 1, 1},  {1, 4, 1},   {1, 16, 1},  {8, 1, 8},   {8, 4, 8},
                             {8, 16, 8}, {1, 1, 100}, {8, 1, 100}, {1, 1, 2000}};
  nlohmann::json rows = nlohmann::json::array();
  if (!as_json) {
    printf("ns of CPU time for cuMemAlloc + cuMemFree on a driver that costs nothing; median of %d runs\n",
           kRuns);
    printf("%9s %9s %9s %9s %9s %9s %7s  %s\n", "processes", "threads", "attached", "direct", "ours", "added",
           "ratio", "system calls");
  }
  for (const Case& each : kCases) {
    const Outcome outcome = run_case(lib, each);
    if (as_json) {
      rows.push_back({{"processes", each.processes},
                      {"threads", each.threads},
                      {"attached", each.attached},
                      {"direct_ns", outcome.direct_ns},
                      {"ours_ns", outcome.ours_ns},
                      {"added_ns", outcome.added_ns()},
                      {"makes_system_calls", !outcome.silent}});
      continue;
    }
    printf("%9d %9d %9u %9.1f %9.1f %9.1f %7.1f  %s\n", each.processes, each.threads, each.attached,
           outcome.direct_ns, outcome.ours_ns, outcome.added_ns(), outcome.ours_ns / outcome.direct_ns,
           outcome.silent ? "none" : "SOME");
  }
  if (as_json)
    printf("%s\n", nlohmann::json({{"driver", "null"}, {"runs", kRuns}, {"rows", rows}}).dump(2).c_str());
  return 0;
}
