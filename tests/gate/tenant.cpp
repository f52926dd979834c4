// SPDX-License-Identifier: Apache-2.0
//
// A program with one behaviour of launching, on the driver API. Knows nothing of slices. Prints what it got
// through and then EXIT-SUCCESS:
//
//   tenant BEHAVIOUR KERNEL_US SECONDS
//
// The GPU's UUID comes first on the line, so that whoever makes the slice can ask.
#include <cuda.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

// The per-thread forms, which cuda.h only declares under a macro that renames the plain ones.
extern "C" {
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             CUstream, void**, void**);
CUresult cuStreamSynchronize_ptsz(CUstream);
}

namespace {

// Spins for as many nanoseconds as its argument says; the simulator goes by the name.
constexpr char kImage[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry spin_for_ns(.param .u64 ns)
{
  .reg .u64 %end, %now;
  .reg .pred %more;
  ld.param.u64 %end, [ns];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
again:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %more, %now, %end;
  @%more bra again;
  ret;
}
)";

using Clock = std::chrono::steady_clock;

void check(CUresult result, const char* call, int line) {
  if (result == CUDA_SUCCESS) return;
  const char* name = "?";
  cuGetErrorName(result, &name);
  fprintf(stderr, "tenant: line %d: %s: %s\n", line, call, name);
  exit(1);
}
#define CHECK(call) check((call), #call, __LINE__)

struct Tenant {
  double kernel_us;
  double seconds;
  CUcontext context = nullptr;
  CUfunction function = nullptr;
  Clock::time_point begin = Clock::now();
  std::atomic<uint64_t> kernels{0};

  void start() {
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    load();
  }
  void load() {
    CUmodule module;
    CHECK(cuModuleLoadData(&module, kImage));
    CHECK(cuModuleGetFunction(&function, module, "spin_for_ns"));
  }
  bool more() const { return Clock::now() - begin < std::chrono::duration<double>(seconds); }

  CUresult launch(CUstream stream, bool per_thread = false) {
    auto ns = static_cast<uint64_t>(kernel_us * 1000);
    void* parameters[] = {&ns};
    auto* launch = per_thread ? cuLaunchKernel_ptsz : cuLaunchKernel;
    CUresult result = launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
    if (result == CUDA_SUCCESS) ++kernels;
    return result;
  }
  CUstream new_stream() {
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
  }
};

void saturate(Tenant& tenant, CUstream stream) {
  while (tenant.more()) CHECK(tenant.launch(stream));
  CHECK(cuCtxSynchronize());
}

void streams(Tenant& tenant) {
  std::vector<CUstream> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(tenant.new_stream());
  for (size_t i = 0; tenant.more(); ++i) CHECK(tenant.launch(streams[i % streams.size()]));
  CHECK(cuCtxSynchronize());
}

void launch_and_wait(Tenant& tenant) {
  CUstream stream = tenant.new_stream();
  while (tenant.more()) {
    CHECK(tenant.launch(stream));
    CHECK(cuStreamSynchronize(stream));
  }
}

// Half of the time there is nothing to run.
void bursts(Tenant& tenant) {
  CUstream stream = tenant.new_stream();
  while (tenant.more()) {
    for (int i = 0; i < 5; ++i) CHECK(tenant.launch(stream));
    CHECK(cuStreamSynchronize(stream));
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(5 * tenant.kernel_us));
  }
}

// As an eager training step of small operations: a few launches, then the host waits and thinks.
void pairs(Tenant& tenant) {
  CUstream stream = tenant.new_stream();
  while (tenant.more()) {
    CHECK(tenant.launch(stream));
    CHECK(tenant.launch(stream));
    CHECK(cuStreamSynchronize(stream));
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(4 * tenant.kernel_us));
  }
}

void per_thread(Tenant& tenant) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&tenant] {
      CHECK(cuCtxSetCurrent(tenant.context));
      while (tenant.more()) CHECK(tenant.launch(nullptr, true));
      CHECK(cuStreamSynchronize_ptsz(nullptr));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void memset_loop(Tenant& tenant) {
  CUstream stream = tenant.new_stream();
  CUdeviceptr memory;
  CHECK(cuMemAlloc(&memory, 1 << 20));
  while (tenant.more()) {
    CHECK(cuMemsetD32Async(memory, 7, (1 << 20) / 4, stream));
    CHECK(cuMemsetD8(memory, 7, 1 << 20));
    tenant.kernels += 2;
  }
  CHECK(cuCtxSynchronize());
}

// Captures while nothing may be launched: a capture is no work. Only the replay waits.
CUgraphExec capture(Tenant& tenant, CUstream stream, int kernels) {
  CUgraph graph;
  CUgraphExec exec;
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < kernels; ++i) CHECK(tenant.launch(stream));
  CHECK(cuStreamEndCapture(stream, &graph));
  CHECK(cuGraphInstantiate(&exec, graph, 0));
  tenant.kernels = 0;
  return exec;
}

void graph(Tenant& tenant) {
  CUstream stream = tenant.new_stream();
  CUgraphExec exec = capture(tenant, stream, 10);
  while (tenant.more()) {
    CHECK(cuGraphLaunch(exec, stream));
    tenant.kernels += 10;
  }
  CHECK(cuCtxSynchronize());
}

void only_capture(Tenant& tenant) {
  CUstream stream = tenant.new_stream();
  capture(tenant, stream, 100);
  tenant.kernels = 100;
}

// Launches in one thread while others capture: neither breaks the other.
void capture_beside(Tenant& tenant) {
  std::thread capturing([&tenant] {
    CHECK(cuCtxSetCurrent(tenant.context));
    while (tenant.more()) {
      CUstream stream = tenant.new_stream();
      CUgraph graph;
      uint64_t ns = 1000;
      void* parameters[] = {&ns};
      CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      for (int i = 0; i < 10; ++i)
        CHECK(cuLaunchKernel(tenant.function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
      CHECK(cuStreamEndCapture(stream, &graph));
      size_t nodes = 0;
      CHECK(cuGraphGetNodes(graph, nullptr, &nodes));
      if (nodes != 10) {
        fprintf(stderr, "tenant: 10 launches were captured as %zu nodes\n", nodes);
        exit(1);
      }
      CHECK(cuGraphDestroy(graph));
      CHECK(cuStreamDestroy(stream));
    }
  });
  saturate(tenant, tenant.new_stream());
  capturing.join();
}

void short_streams(Tenant& tenant) {
  while (tenant.more()) {
    CUstream stream = tenant.new_stream();
    for (int i = 0; i < 5; ++i) CHECK(tenant.launch(stream));
    CHECK(cuStreamDestroy(stream));
  }
  CHECK(cuCtxSynchronize());
}

CUcontext new_context() {
  CUcontext context;
#if CUDA_VERSION >= 13000
  CHECK(cuCtxCreate(&context, nullptr, 0, 0));
#else
  CHECK(cuCtxCreate(&context, 0, 0));
#endif
  return context;
}

// Contexts that go away with work pending.
void short_contexts(Tenant& tenant) {
  while (tenant.more()) {
    CUcontext context = new_context();
    tenant.load();
    CUstream stream = tenant.new_stream();
    for (int i = 0; i < 20; ++i) CHECK(tenant.launch(stream));
    CHECK(tenant.launch(CU_STREAM_LEGACY));
    CHECK(cuCtxDestroy(context));
  }
}

// --- Handles that the driver gives out again.

// A stream with a handle that was launched on in the context that is current and then destroyed; made by
// `create`.
template <typename Create>
CUstream used_handle(Tenant& tenant, Create create) {
  for (int i = 0; i < 1000; ++i) {
    CUstream used = tenant.new_stream();
    CHECK(tenant.launch(used));
    CHECK(cuStreamSynchronize(used));
    CHECK(cuStreamDestroy(used));
    CUstream stream = create();
    if (stream == used) return stream;
  }
  fprintf(stderr, "tenant: no handle came again\n");
  exit(1);
}

void launch_for_a_while(Tenant& tenant, CUstream stream) {
  CHECK(cuStreamSynchronize(stream));
  tenant.kernels = 0;
  saturate(tenant, stream);
}

void handle_in_another_context(Tenant& tenant) {
  CUcontext other = new_context();
  CHECK(cuCtxSetCurrent(tenant.context));
  const CUfunction function = tenant.function;
  CUstream stream = used_handle(tenant, [&] {
    CHECK(cuCtxSetCurrent(other));
    CUstream stream = tenant.new_stream();
    CHECK(cuCtxSetCurrent(tenant.context));
    return stream;
  });
  CHECK(cuCtxSetCurrent(other));
  tenant.load();
  launch_for_a_while(tenant, stream);
  tenant.function = function;
  CHECK(cuCtxSetCurrent(tenant.context));
  CHECK(cuCtxDestroy(other));
}

void handle_again(Tenant& tenant) {
  launch_for_a_while(tenant, used_handle(tenant, [&] { return tenant.new_stream(); }));
}

void handle_after_capture(Tenant& tenant) {
  CUstream stream = tenant.new_stream();
  CHECK(tenant.launch(stream));
  capture(tenant, stream, 10);
  launch_for_a_while(tenant, stream);
}

void many_streams(Tenant& tenant) {
  std::vector<CUstream> streams;
  for (int i = 0; i < 1000; ++i) streams.push_back(tenant.new_stream());
  for (size_t i = 0; tenant.more(); ++i) CHECK(tenant.launch(streams[i % streams.size()]));
  CHECK(cuCtxSynchronize());
}

void threads(Tenant& tenant) {
  CUstream stream = tenant.new_stream();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&tenant, stream] {
      CHECK(cuCtxSetCurrent(tenant.context));
      while (tenant.more()) CHECK(tenant.launch(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(cuCtxSynchronize());
}

// The child of a process that has work under way starts with nothing of it.
void fork_with_work(Tenant& tenant) {
  CUstream stream = tenant.new_stream();
  for (int i = 0; i < 100; ++i) CHECK(tenant.launch(stream));
  pid_t child = fork();
  if (child == 0) {
    // CUDA does not survive a fork; the launch fails, but neither hangs nor waits for the parent's turn.
    CUresult result = tenant.launch(stream);
    _exit(result == CUDA_SUCCESS ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) {
    fprintf(stderr, "tenant: the child ended with status %d\n", status);
    exit(1);
  }
  saturate(tenant, stream);
}

// --- Work that waits for work that is launched later.

constexpr int kRounds = 4;
constexpr int kSome = 5;

void launch_some(Tenant& tenant, CUstream stream) {
  for (int i = 0; i < kSome; ++i) CHECK(tenant.launch(stream));
}

// One stream waits for a word that another one sets behind kernels of its own.
void later_launch(Tenant& tenant) {
  CUstream one = tenant.new_stream(), other = tenant.new_stream();
  CUdeviceptr word;
  CHECK(cuMemAlloc(&word, sizeof(uint32_t)));
  for (uint32_t round = 1; round <= kRounds; ++round) {
    launch_some(tenant, one);
    CHECK(cuStreamWaitValue32(one, word, round, CU_STREAM_WAIT_VALUE_GEQ));
    launch_some(tenant, one);
    for (int i = 0; i < 10; ++i) launch_some(tenant, other);
    CHECK(cuStreamWriteValue32(other, word, round, 0));
    CHECK(cuStreamSynchronize(one));
  }
}

// A kernel that outlasts the turn by far, beside others.
void persistent(Tenant& tenant) {
  CUstream one = tenant.new_stream(), other = tenant.new_stream();
  const double short_us = tenant.kernel_us;
  tenant.kernel_us = 1000 * short_us;
  CHECK(tenant.launch(one));
  tenant.kernel_us = short_us;
  for (int round = 0; round < 2 * kRounds; ++round) launch_some(tenant, other);
  CHECK(cuCtxSynchronize());
}

// A host function in a stream lets a thread launch what the stream waits for next.
void host_function(Tenant& tenant) {
  CUstream one = tenant.new_stream(), other = tenant.new_stream();
  CUevent done;
  CHECK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  std::atomic<int> reached = 0, launched = 0;
  std::thread thread([&] {
    CHECK(cuCtxSetCurrent(tenant.context));
    for (int round = 1; round <= kRounds; ++round) {
      for (int seen; (seen = reached) < round;) reached.wait(seen);
      for (int i = 0; i < 10; ++i) launch_some(tenant, other);
      CHECK(cuEventRecord(done, other));
      launched = round;
      launched.notify_all();
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    launch_some(tenant, one);
    const auto reach = [](void* data) {
      auto* count = static_cast<std::atomic<int>*>(data);
      ++*count;
      count->notify_all();
    };
    CHECK(cuLaunchHostFunc(one, reach, &reached));
    for (int seen; (seen = launched) < round;) launched.wait(seen);
    CHECK(cuStreamWaitEvent(one, done, 0));
    launch_some(tenant, one);
  }
  CHECK(cuStreamSynchronize(one));
  thread.join();
}

// Memory that both processes of a behaviour with two of them share.
struct Ranks {
  uint32_t reached[2];
};
Ranks* ranks = nullptr;
int rank_of_self = 0;

// As an all-reduce: neither rank's stream goes on before the other's has come as far.
void two_ranks(Tenant& tenant) {
  CUstream stream = tenant.new_stream();
  CHECK(cuMemHostRegister(ranks, sizeof *ranks, CU_MEMHOSTREGISTER_DEVICEMAP));
  CUdeviceptr words;
  CHECK(cuMemHostGetDevicePointer(&words, ranks, 0));
  const auto word = [&](int rank) { return words + static_cast<size_t>(rank) * sizeof(uint32_t); };
  for (uint32_t round = 1; round <= kRounds; ++round) {
    // The second rank comes so much later that the turn is over for it.
    for (int i = 0; i < (rank_of_self == 0 ? 1 : 10); ++i) launch_some(tenant, stream);
    CHECK(cuStreamWriteValue32(stream, word(rank_of_self), round, 0));
    CHECK(cuStreamWaitValue32(stream, word(1 - rank_of_self), round, CU_STREAM_WAIT_VALUE_GEQ));
    launch_some(tenant, stream);
    CHECK(cuStreamSynchronize(stream));
  }
  CHECK(cuMemHostUnregister(ranks));
}

// Makes this process two, before either has used CUDA. The first waits for the second in join().
class SecondProcess {
 public:
  void fork_now() {
    ranks = static_cast<Ranks*>(
        mmap(nullptr, sizeof(Ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (ranks == MAP_FAILED) abort();
    pid_ = fork();
    rank_of_self = pid_ == 0 ? 1 : 0;
    if (pid_ == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);  // whoever ends the first ends both
  }
  bool is_self() const { return pid_ == 0; }
  void join() const {
    if (pid_ <= 0) return;
    int status = 0;
    waitpid(pid_, &status, 0);
    if (status == 0) return;
    fprintf(stderr, "tenant: the second process ended with status %d\n", status);
    exit(1);
  }

 private:
  pid_t pid_ = -1;
};

struct Behaviour {
  std::string_view name;
  void (*run)(Tenant&);
};
constexpr Behaviour kBehaviours[] = {
    {"nothing", [](Tenant&) {}},
    {"stream", [](Tenant& tenant) { saturate(tenant, tenant.new_stream()); }},
    {"legacy", [](Tenant& tenant) { saturate(tenant, nullptr); }},
    {"streams", streams},
    {"launch_and_wait", launch_and_wait},
    {"bursts", bursts},
    {"pairs", pairs},
    {"per_thread", per_thread},
    {"memset", memset_loop},
    {"graph", graph},
    {"only_capture", only_capture},
    {"capture_beside", capture_beside},
    {"short_streams", short_streams},
    {"short_contexts", short_contexts},
    {"many_streams", many_streams},
    {"handle_in_another_context", handle_in_another_context},
    {"handle_again", handle_again},
    {"handle_after_capture", handle_after_capture},
    {"threads", threads},
    {"fork_with_work", fork_with_work},
    {"later_launch", later_launch},
    {"persistent", persistent},
    {"host_function", host_function},
    {"two_ranks", two_ranks},
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    fprintf(stderr, "usage: tenant BEHAVIOUR KERNEL_US SECONDS\n");
    return 2;
  }
  SecondProcess second;
  if (arguments[1] == std::string_view("two_ranks")) second.fork_now();
  Tenant tenant = {.kernel_us = atof(arguments[2]), .seconds = atof(arguments[3])};
  tenant.start();
  CUuuid uuid;
  CHECK(cuDeviceGetUuid(&uuid, 0));
  for (char byte : uuid.bytes) printf("%02x", static_cast<unsigned char>(byte));
  for (const Behaviour& behaviour : kBehaviours) {
    if (behaviour.name != arguments[1]) continue;
    tenant.begin = Clock::now();
    behaviour.run(tenant);
    if (second.is_self()) _exit(0);
    second.join();
    double wall = std::chrono::duration<double>(Clock::now() - tenant.begin).count();
    printf(" kernels=%" PRIu64 " wall_s=%.6f EXIT-SUCCESS\n", tenant.kernels.load(), wall);
    return 0;
  }
  fprintf(stderr, "tenant: no behaviour '%s'\n", arguments[1]);
  return 2;
}
