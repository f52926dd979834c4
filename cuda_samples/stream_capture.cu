// SPDX-License-Identifier: Apache-2.0
//
// A tenant that captures all the time, beside work that is not captured. Whoever stands between a program and
// the driver must leave a capturing stream alone: one event, query or wait too many invalidates the capture.
#include "support.h"

namespace {

struct Streams {
  cudaStream_t main, side, other;
  cudaEvent_t fork, join;
};

// A chain in one stream.
void capture_chain(const Streams& s, const samples::BusyKernel& kernel) {
  for (int i = 0; i < 3; ++i) kernel.launch(s.main);
}

// Work that goes over to a second stream and comes back.
void capture_fork(const Streams& s, const samples::BusyKernel& kernel) {
  kernel.launch(s.main);
  CHECK(cudaEventRecord(s.fork, s.main));
  CHECK(cudaStreamWaitEvent(s.side, s.fork, 0));
  kernel.launch(s.side);
  kernel.launch(s.main);
  CHECK(cudaEventRecord(s.join, s.side));
  CHECK(cudaStreamWaitEvent(s.main, s.join, 0));
}

// Memory that is taken and given back inside the graph. The pool may be full for a moment; the sizes are
// small.
void capture_memory(const Streams& s, const samples::BusyKernel& kernel) {
  void* scratch = nullptr;
  CHECK(cudaMallocAsync(&scratch, samples::kMiB, s.main));
  CHECK(cudaMemsetAsync(scratch, 0, samples::kMiB, s.main));
  kernel.launch(s.main);
  CHECK(cudaFreeAsync(scratch, s.main));
}

struct Case {
  const char* name;
  void (*capture)(const Streams&, const samples::BusyKernel&);
  size_t nodes;
};

constexpr Case kCases[] = {
    {"chain", capture_chain, 3}, {"fork", capture_fork, 3}, {"memory", capture_memory, 4}};

void run_case(const Case& test, cudaStreamCaptureMode mode, const Streams& s,
              const samples::BusyKernel& kernel) {
  // Not captured, and unfinished while the capture goes on.
  kernel.launch(s.other);
  CHECK(cudaStreamBeginCapture(s.main, mode));
  test.capture(s, kernel);
  kernel.launch(s.other);
  cudaStreamCaptureStatus status;
  CHECK(cudaStreamIsCapturing(s.main, &status));
  EXPECT(status == cudaStreamCaptureStatusActive);
  CHECK(cudaStreamIsCapturing(s.other, &status));
  EXPECT(status == cudaStreamCaptureStatusNone);
  cudaGraph_t graph;
  CHECK(cudaStreamEndCapture(s.main, &graph));
  size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  if (nodes != test.nodes) {
    fprintf(stderr, "stream_capture: '%s' captured %zu nodes, not %zu\n", test.name, nodes, test.nodes);
    exit(1);
  }
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiateWithFlags(&executable, graph, 0));
  for (int i = 0; i < 2; ++i) CHECK(cudaGraphLaunch(executable, s.main));
  CHECK(cudaStreamSynchronize(s.main));
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
}

}  // namespace

int main(int argc, char** argv) {
  double rounds = 50, kernel_us = 20;
  bool as_json = false;
  samples::Options options("Captures graphs of several shapes beside uncaptured work, and replays them.");
  options.number("--rounds", &rounds, "rounds of all cases (50)");
  options.number("--kernel-us", &kernel_us, "length of each kernel in microseconds (20)");
  options.flag("--json", &as_json, "one JSON object before the last line");
  options.parse(argc, argv);

  const samples::BusyKernel kernel(static_cast<uint64_t>(kernel_us * 1e3));
  Streams s;
  for (cudaStream_t* stream : {&s.main, &s.side, &s.other}) {
    CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  }
  for (cudaEvent_t* event : {&s.fork, &s.join})
    CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));

  constexpr cudaStreamCaptureMode kModes[] = {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                              cudaStreamCaptureModeRelaxed};
  uint64_t captures = 0;
  const uint64_t begin_ns = samples::now_ns();
  for (uint64_t round = 0; round < static_cast<uint64_t>(rounds); ++round) {
    for (const Case& test : kCases) {
      run_case(test, kModes[round % 3], s, kernel);
      ++captures;
    }
  }
  CHECK(cudaDeviceSynchronize());
  const uint64_t wall_ns = samples::now_ns() - begin_ns;

  samples::Report report;
  report.add("sample", "stream_capture");
  report.add("captures", captures);
  report.add("wall_seconds", wall_ns * 1e-9);
  return samples::finish(report, as_json);
}
