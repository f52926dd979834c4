// SPDX-License-Identifier: Apache-2.0
//
// A tenant that always has work: kernels of one length or of mixed lengths, queued ahead so that the GPU
// never waits for the host.
#include <cmath>
#include <optional>
#include <random>

#include "support.h"
#include "timeline.h"

namespace {

// Lengths from `shortest` to `longest`, as many between 20 and 40 us as between 10 and 20 ms; the same ones
// in every run.
class Lengths {
 public:
  Lengths(uint64_t shortest_ns, uint64_t longest_ns)
      : shortest_ns_(shortest_ns),
        logarithms_(0, std::log(static_cast<double>(std::max(longest_ns, shortest_ns)) / shortest_ns)) {}

  uint64_t next() { return static_cast<uint64_t>(shortest_ns_ * std::exp(logarithms_(random_))); }

 private:
  uint64_t shortest_ns_;
  std::uniform_real_distribution<double> logarithms_;
  std::minstd_rand random_;
};

}  // namespace

int main(int argc, char** argv) {
  double seconds = 2, kernel_us = 1000, longest_us = 0, streams = 1;
  bool as_json = false, with_timeline = false;
  samples::Options options("Launches kernels without a pause.");
  options.number("--seconds", &seconds, "how long (2)");
  options.number("--kernel-us", &kernel_us, "length of each kernel in microseconds (1000)");
  options.number("--longest-us", &longest_us, "mixed lengths, from --kernel-us to this (all the same)");
  options.number("--streams", &streams, "streams that take turns, 1 to 32 (1)");
  options.flag("--timeline", &with_timeline, "report when the GPU was done with each piece; one stream only");
  options.flag("--json", &as_json, "one JSON object before the last line");
  options.parse(argc, argv);
  if (with_timeline && streams > 1) {
    fprintf(stderr, "busy: --timeline is for one stream\n");
    return 2;
  }

  const samples::BusyKernel kernel(std::max<uint64_t>(static_cast<uint64_t>(kernel_us * 1e3), 1));
  Lengths lengths(kernel.ns(), static_cast<uint64_t>(longest_us * 1e3));
  std::vector<cudaStream_t> queues(std::clamp<size_t>(static_cast<size_t>(streams), 1, 32));
  for (cudaStream_t& queue : queues) CHECK(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking));
  std::optional<samples::Timeline> timeline;
  if (with_timeline) timeline.emplace(queues[0]);

  samples::Pipeline pipeline(queues[0]);
  uint64_t kernels = 0, asked_ns = 0;
  const uint64_t begin_ns = samples::now_ns();
  const uint64_t end_ns = begin_ns + static_cast<uint64_t>(seconds * 1e9);
  do {
    const uint64_t batch_begin_ns = asked_ns;
    for (uint64_t i = 0;
         i < samples::Pipeline::kMostKernels && asked_ns - batch_begin_ns < samples::Pipeline::kBatchNs;
         ++i) {
      const uint64_t ns = longest_us > kernel_us ? lengths.next() : kernel.ns();
      kernel.launch_for(queues[kernels++ % queues.size()], ns);
      asked_ns += ns;
      if (timeline) timeline->queued(ns);
    }
    pipeline.batch_queued();
    // Who starts others once this one is at work reads this.
    if (timeline && batch_begin_ns == 0) {
      printf("RUNNING\n");
      fflush(stdout);
    }
  } while (samples::now_ns() < end_ns);
  CHECK(cudaDeviceSynchronize());
  const uint64_t wall_ns = samples::now_ns() - begin_ns;

  samples::Report report;
  report.add("sample", "busy");
  samples::add_rates(&report, kernels, kernels == 0 ? 0 : asked_ns / kernels, wall_ns);
  report.add("begin_ns", begin_ns);
  if (timeline) timeline->add_to(&report);
  timeline.reset();
  for (cudaStream_t queue : queues) CHECK(cudaStreamDestroy(queue));
  return samples::finish(report, as_json);
}
