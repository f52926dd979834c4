// SPDX-License-Identifier: Apache-2.0
//
// Work that waits for other work, which a program has yet to launch: whoever holds launches back must not
// hold back those. Each round ends only if they get through; what counts is how long the longest round took.
#include <cuda.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#include "support.h"

namespace {

// The driver's own operations on a word, which the runtime has no calls for.
struct WordOperations {
  WordOperations() {
    find("cuStreamWaitValue32", &wait);
    find("cuStreamWriteValue32", &write);
  }
  template <typename Function>
  static void find(const char* name, Function* function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
    EXPECT(found != nullptr);
    *function = reinterpret_cast<Function>(found);
  }
  CUresult (*wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  CUresult (*write)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
};

CUdeviceptr address(const void* word) { return reinterpret_cast<CUdeviceptr>(word); }

struct Setting {
  const samples::BusyKernel& kernel;
  uint64_t rounds;
  uint64_t kernels;  // in each round, before and after what is waited for
};

void launch_some(const Setting& setting, cudaStream_t stream) {
  for (uint64_t i = 0; i < setting.kernels; ++i) setting.kernel.launch(stream);
}

struct Streams {
  Streams() {
    for (cudaStream_t* stream : {&one, &other})
      CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  }
  ~Streams() {
    for (cudaStream_t stream : {one, other}) cudaStreamDestroy(stream);
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  cudaStream_t one, other;
};

// Times rounds and keeps the longest.
class Rounds {
 public:
  template <typename Round>
  void run(uint64_t count, const Round& round) {
    for (uint64_t i = 1; i <= count; ++i) {
      const uint64_t begin_ns = samples::now_ns();
      round(i);
      longest_ns_ = std::max(longest_ns_, samples::now_ns() - begin_ns);
    }
  }
  uint64_t longest_ns() const { return longest_ns_; }

 private:
  uint64_t longest_ns_ = 0;
};

// A kernel that keeps some of the GPU until a word is set.
__global__ void spin_until_set(volatile uint32_t* word, uint32_t value) {
  while (*word < value) {
  }
}
__global__ void set_word(volatile uint32_t* word, uint32_t value) {
  *word = value;
  __threadfence_system();
}

// A spinning kernel and, in another stream, the kernels that it waits for. The simulator's kernels compute
// nothing and do not wait: there the stream's wait stands in for it.
uint64_t later_launch(const Setting& setting) {
  const Streams streams;
  const WordOperations words;
  uint32_t* word = nullptr;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&word), sizeof *word));
  CHECK(cudaMemset(word, 0, sizeof *word));
  CHECK(cudaDeviceSynchronize());
  Rounds rounds;
  rounds.run(setting.rounds, [&](uint64_t i) {
    const auto value = static_cast<uint32_t>(i);
    spin_until_set<<<1, 1, 0, streams.one>>>(word, value);
    EXPECT(words.wait(streams.one, address(word), value, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
    launch_some(setting, streams.one);
    launch_some(setting, streams.other);
    set_word<<<1, 1, 0, streams.other>>>(word, value);
    EXPECT(words.write(streams.other, address(word), value, 0) == CUDA_SUCCESS);
    CHECK(cudaStreamSynchronize(streams.other));
    CHECK(cudaStreamSynchronize(streams.one));
  });
  CHECK(cudaFree(word));
  return rounds.longest_ns();
}

// A host function in a stream lets another thread launch what the stream's next kernels wait for.
uint64_t host_function(const Setting& setting) {
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t reached = 0, launched = 0;
  } signal;
  const Streams streams;
  cudaEvent_t done;
  CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  std::thread other([&] {
    for (uint64_t i = 1; i <= setting.rounds; ++i) {
      std::unique_lock lock(signal.mutex);
      signal.changed.wait(lock, [&] { return signal.reached >= i; });
      lock.unlock();
      launch_some(setting, streams.other);
      CHECK(cudaEventRecord(done, streams.other));
      lock.lock();
      signal.launched = i;
      signal.changed.notify_all();
    }
  });
  Rounds rounds;
  rounds.run(setting.rounds, [&](uint64_t i) {
    launch_some(setting, streams.one);
    const auto reached = [](void* data) {
      auto* to = static_cast<Signal*>(data);
      const std::lock_guard lock(to->mutex);
      ++to->reached;
      to->changed.notify_all();
    };
    CHECK(cudaLaunchHostFunc(streams.one, reached, &signal));
    std::unique_lock lock(signal.mutex);
    signal.changed.wait(lock, [&] { return signal.launched >= i; });
    lock.unlock();
    CHECK(cudaStreamWaitEvent(streams.one, done, 0));
    launch_some(setting, streams.one);
    CHECK(cudaStreamSynchronize(streams.one));
  });
  other.join();
  CHECK(cudaEventDestroy(done));
  return rounds.longest_ns();
}

// A kernel that stays for the whole run, beside kernels in another stream that come and go.
uint64_t persistent(const Setting& setting) {
  const Streams streams;
  const samples::BusyKernel stays(setting.rounds * setting.kernels * setting.kernel.ns());
  stays.launch(streams.one);
  Rounds rounds;
  rounds.run(setting.rounds, [&](uint64_t) { launch_some(setting, streams.other); });
  const uint64_t begin_ns = samples::now_ns();
  CHECK(cudaStreamSynchronize(streams.other));
  CHECK(cudaStreamSynchronize(streams.one));
  return std::max(rounds.longest_ns(), samples::now_ns() - begin_ns);
}

// Two processes exchange a word after each round's kernels, as the ranks of an all-reduce do: neither goes on
// before the other has come as far. They fork before CUDA starts.
struct Exchange {
  std::atomic<uint32_t> reached[2];  // the words that streams write and wait for
  std::atomic<uint64_t> longest_ns[2];
};

uint64_t rank(const Setting& setting, Exchange* exchange, int self) {
  const Streams streams;
  const WordOperations words;
  CHECK(cudaHostRegister(exchange, sizeof *exchange, cudaHostRegisterMapped));
  void* mapped = nullptr;
  CHECK(cudaHostGetDevicePointer(&mapped, exchange, 0));
  const auto word = [&](int which) { return address(&static_cast<Exchange*>(mapped)->reached[which]); };
  Rounds rounds;
  rounds.run(setting.rounds, [&](uint64_t i) {
    const auto value = static_cast<uint32_t>(i);
    launch_some(setting, streams.one);
    EXPECT(words.write(streams.one, word(self), value, 0) == CUDA_SUCCESS);
    EXPECT(words.wait(streams.one, word(1 - self), value, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
    launch_some(setting, streams.one);
    CHECK(cudaStreamSynchronize(streams.one));
  });
  CHECK(cudaHostUnregister(exchange));
  return rounds.longest_ns();
}

struct Case {
  const char* name;
  uint64_t (*run)(const Setting&);
};
constexpr Case kCases[] = {
    {"later_launch", later_launch}, {"host_function", host_function}, {"persistent", persistent}};
constexpr const char* kTwoRanks = "two_ranks";

}  // namespace

int main(int argc, char** argv) {
  double rounds = 100, kernel_us = 200, kernels = 10;
  std::string name = kTwoRanks;
  bool as_json = false;
  samples::Options options("Runs work that waits for work that is launched later.");
  options.text("--case", &name, "later_launch, host_function, persistent or two_ranks (two_ranks)");
  options.number("--rounds", &rounds, "how often (100)");
  options.number("--kernel-us", &kernel_us, "length of each kernel in microseconds (200)");
  options.number("--kernels", &kernels, "kernels before and after each wait (10)");
  options.flag("--json", &as_json, "one JSON object before the last line");
  options.parse(argc, argv);
  const auto* chosen =
      std::find_if(std::begin(kCases), std::end(kCases), [&](const Case& each) { return each.name == name; });
  if (chosen == std::end(kCases) && name != kTwoRanks) {
    fprintf(stderr, "interlock: '%s' is no case; see --help\n", name.c_str());
    return 2;
  }

  // Before CUDA starts, for it does not outlive a fork.
  int self = 0;
  pid_t peer = -1;
  Exchange* exchange = nullptr;
  if (name == kTwoRanks) {
    void* mapping =
        mmap(nullptr, sizeof(Exchange), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(mapping != MAP_FAILED);
    exchange = new (mapping) Exchange{};
    peer = fork();
    EXPECT(peer >= 0);
    if (peer == 0) self = 1;
  }

  const samples::BusyKernel kernel(static_cast<uint64_t>(kernel_us * 1e3));
  const Setting setting{kernel, std::max<uint64_t>(static_cast<uint64_t>(rounds), 1),
                        std::max<uint64_t>(static_cast<uint64_t>(kernels), 1)};
  uint64_t longest_ns = 0;
  const uint64_t begin_ns = samples::now_ns();
  if (exchange == nullptr) {
    longest_ns = chosen->run(setting);
  } else {
    exchange->longest_ns[self] = rank(setting, exchange, self);
    if (self == 1) return 0;
    int status = 0;
    EXPECT(waitpid(peer, &status, 0) == peer && status == 0);
    longest_ns = std::max(exchange->longest_ns[0].load(), exchange->longest_ns[1].load());
  }

  samples::Report report;
  report.add("sample", "interlock");
  report.add("case", name);
  report.add("rounds", setting.rounds);
  report.add("round_work_ns", 2 * setting.kernels * kernel.ns());
  report.add("longest_round_ns", longest_ns);
  report.add("wall_seconds", (samples::now_ns() - begin_ns) * 1e-9);
  return samples::finish(report, as_json);
}
