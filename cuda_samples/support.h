// SPDX-License-Identifier: Apache-2.0
//
// What every sample shares: checked calls, options, the report at the end, and a kernel of known length.
// Depends on CUDA and the C++ library only. Everything is inline: a sample is one source file.
#pragma once

#include <cuda_runtime.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace samples {

constexpr uint64_t kMiB = 1 << 20;

// Ends the process with status 1 if a runtime call failed: a sample has nothing to save.
#define CHECK(call) ::samples::check((call), #call, __FILE__, __LINE__)

inline void check(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s:%d: %s: %s (%d)\n", file, line, call, cudaGetErrorName(error), static_cast<int>(error));
  exit(1);
}

// The same for what a sample expects of the results.
#define EXPECT(condition) ::samples::expect((condition), #condition, __FILE__, __LINE__)

inline void expect(bool holds, const char* condition, const char* file, int line) {
  if (holds) return;
  fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
  exit(1);
}

inline uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ull + now.tv_nsec;
}

// ---- Options --------------------------------------------------------------------------------------

// `--name VALUE` and `--name` options. A bad one ends the process with status 2 and says what is allowed.
class Options {
 public:
  explicit Options(const char* about) : about_(about) {}

  void flag(const char* name, bool* value, const char* help) { add({name, help, value, nullptr, nullptr}); }
  void number(const char* name, double* value, const char* help) {
    add({name, help, nullptr, value, nullptr});
  }
  void text(const char* name, std::string* value, const char* help) {
    add({name, help, nullptr, nullptr, value});
  }

  void parse(int argc, char** argv) const {
    for (int i = 1; i < argc; ++i) {
      if (strcmp(argv[i], "--help") == 0) {
        print_help(stdout, argv[0]);
        exit(0);
      }
      const auto option =
          std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name == argv[i]; });
      if (option == options_.end()) fail(argv[0], argv[i], "is no option of this program");
      if (option->flag != nullptr) {
        *option->flag = true;
        continue;
      }
      if (++i == argc) fail(argv[0], argv[i - 1], "needs a value");
      if (option->text != nullptr) {
        *option->text = argv[i];
        continue;
      }
      char* end = nullptr;
      errno = 0;
      const double value = strtod(argv[i], &end);
      if (end == argv[i] || *end != 0 || errno != 0 || !(value >= 0 && value <= 1e15)) {
        fail(argv[0], argv[i - 1], "needs a number from 0 to 1e15");
      }
      *option->number = value;
    }
  }

 private:
  struct Option {
    std::string name, help;
    bool* flag;
    double* number;
    std::string* text;
  };

  void add(Option option) { options_.push_back(std::move(option)); }

  void print_help(FILE* to, const char* program) const {
    fprintf(to, "usage: %s [option]...\n%s\n\n", program, about_);
    for (const Option& o : options_) {
      fprintf(to, "  %-20s %s\n", (o.name + (o.flag != nullptr ? "" : " VALUE")).c_str(), o.help.c_str());
    }
  }

  [[noreturn]] void fail(const char* program, const char* option, const char* what) const {
    fprintf(stderr, "%s: '%s' %s\n\n", program, option, what);
    print_help(stderr, program);
    exit(2);
  }

  const char* about_;
  std::vector<Option> options_;
};

// ---- Report ---------------------------------------------------------------------------------------

// Named results in the order in which they were added: one JSON object on one line, or a line each.
class Report {
 public:
  void add(const char* name, const std::string& value) { fields_.push_back({name, '"' + value + '"'}); }
  void add(const char* name, const char* value) { add(name, std::string(value)); }
  void add(const char* name, bool value) { fields_.push_back({name, value ? "true" : "false"}); }
  void add(const char* name, uint64_t value) { fields_.push_back({name, std::to_string(value)}); }
  void add(const char* name, int value) { fields_.push_back({name, std::to_string(value)}); }
  void add(const char* name, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    fields_.push_back({name, text});
  }
  void add(const char* name, const std::vector<Report>& values) {
    std::string text;
    for (const Report& value : values) text += (text.empty() ? "" : ", ") + value.json();
    fields_.push_back({name, '[' + text + ']'});
  }
  void add(const char* name, const std::vector<uint64_t>& values) {
    std::string text;
    for (const uint64_t value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
    fields_.push_back({name, '[' + text + ']'});
  }

  std::string json() const {
    std::string text;
    for (const Field& field : fields_) {
      text += (text.empty() ? "\"" : ", \"") + field.name + "\": " + field.value;
    }
    return '{' + text + '}';
  }

  std::string lines() const {
    std::string text;
    for (const Field& field : fields_) text += field.name + ": " + field.value + '\n';
    return text;
  }

 private:
  struct Field {
    std::string name, value;
  };
  std::vector<Field> fields_;
};

// The last lines of a sample that did all it should. Returns the exit status.
inline int finish(const Report& report, bool as_json) {
  printf("%sEXIT-SUCCESS\n", as_json ? (report.json() + '\n').c_str() : report.lines().c_str());
  return fflush(stdout) == 0 ? 0 : 1;
}

// ---- Work of known length -------------------------------------------------------------------------

// Keeps its SMs busy for `ns` of the GPU's own time. The simulator reads the length from the first argument
// of every kernel named `..._for_ns`; a real GPU does `rounds` rounds of work, as many as take that long. It
// counts rounds and not time, because a clock goes on while the driver lets another process' kernels run.
static __global__ void busy_for_ns(uint64_t ns, uint64_t rounds, float* sink) {
  float value = threadIdx.x;
  for (uint64_t i = 0; i < rounds; ++i) value = __fmaf_rn(value, 0.999f, 0.5f);
  if (value < 0.0f && ns == 0) *sink = value;
}

static __global__ void measure_rounds(uint64_t rounds, uint64_t* elapsed_ns, float* sink) {
  uint64_t begin, end;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin)::"memory");
  float value = threadIdx.x;
  for (uint64_t i = 0; i < rounds; ++i) value = __fmaf_rn(value, 0.999f, 0.5f);
  if (value < 0.0f) *sink = value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end)::"memory");
  if (threadIdx.x == 0) *elapsed_ns = end - begin;
}

// A kernel of a given length that fills the GPU, ready to be launched on any stream.
class BusyKernel {
 public:
  static constexpr int kThreads = 128;

  explicit BusyKernel(uint64_t ns) : ns_(ns), rounds_per_ns_(measure_rounds_per_ns()) {
    int device = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&blocks_, cudaDevAttrMultiProcessorCount, device));
  }

  void launch(cudaStream_t stream) const { launch_for(stream, ns_); }
  // The same kernel with another length.
  void launch_for(cudaStream_t stream, uint64_t ns) const {
    busy_for_ns<<<blocks_, kThreads, 0, stream>>>(ns, rounds_for(ns), nullptr);
    CHECK(cudaGetLastError());
  }

  uint64_t ns() const { return ns_; }
  int blocks() const { return blocks_; }
  uint64_t rounds_for(uint64_t ns) const { return static_cast<uint64_t>(ns * rounds_per_ns_); }

 private:
  // 0 on the simulator, where kernels compute nothing and the length is taken from the argument. The best of
  // a few short runs: in the others another process' kernels may have come between.
  static double measure_rounds_per_ns() {
    constexpr uint64_t kRounds = 100'000;
    uint64_t* elapsed_on_gpu = nullptr;
    CHECK(cudaMalloc(reinterpret_cast<void**>(&elapsed_on_gpu), sizeof *elapsed_on_gpu));
    CHECK(cudaMemset(elapsed_on_gpu, 0, sizeof *elapsed_on_gpu));
    uint64_t best_ns = UINT64_MAX;
    for (int i = 0; i < 8; ++i) {
      measure_rounds<<<1, kThreads>>>(kRounds, elapsed_on_gpu, nullptr);
      uint64_t elapsed_ns = 0;
      CHECK(cudaMemcpy(&elapsed_ns, elapsed_on_gpu, sizeof elapsed_ns, cudaMemcpyDeviceToHost));
      if (elapsed_ns != 0) best_ns = std::min(best_ns, elapsed_ns);
    }
    CHECK(cudaFree(elapsed_on_gpu));
    return best_ns == UINT64_MAX ? 0 : static_cast<double>(kRounds) / best_ns;
  }

  uint64_t ns_;
  double rounds_per_ns_;
  int blocks_;
};

// Keeps a bounded amount of work queued: enough that the GPU never runs dry, little enough that the program
// ends soon after its time is up. The thread sleeps meanwhile.
class Pipeline {
 public:
  // A batch is about so much work.
  static constexpr uint64_t kBatchNs = 5'000'000;
  static uint64_t kernels_per_batch(uint64_t kernel_ns) {
    return std::clamp<uint64_t>(kBatchNs / std::max<uint64_t>(kernel_ns, 1), 1, kMostKernels);
  }
  static constexpr uint64_t kMostKernels = 100;

  explicit Pipeline(cudaStream_t stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) {
      CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
    }
  }
  ~Pipeline() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // To be called after each batch: returns when at most kBatches are unfinished.
  void batch_queued() {
    CHECK(cudaEventRecord(events_[next_], stream_));
    next_ = (next_ + 1) % kBatches;
    CHECK(cudaEventSynchronize(events_[next_]));
  }

 private:
  static constexpr int kBatches = 4;
  cudaStream_t stream_;
  cudaEvent_t events_[kBatches];
  int next_ = 0;
};

// What the programs that burn GPU time report.
inline void add_rates(Report* report, uint64_t kernels, uint64_t kernel_ns, uint64_t wall_ns) {
  report->add("kernels", kernels);
  report->add("kernel_ns", kernel_ns);
  report->add("gpu_ns_asked", kernels * kernel_ns);
  report->add("wall_seconds", wall_ns * 1e-9);
  report->add("kernels_per_second", kernels / (wall_ns * 1e-9));
}

}  // namespace samples
