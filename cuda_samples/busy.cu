// SPDX-License-Identifier: Apache-2.0
//
// A tenant that always has work: kernels of one length, queued ahead so that the GPU never waits for the
// host.
#include "support.h"

int main(int argc, char** argv) {
  double seconds = 2, kernel_us = 1000, streams = 1;
  bool as_json = false;
  samples::Options options("Launches kernels without a pause.");
  options.number("--seconds", &seconds, "how long (2)");
  options.number("--kernel-us", &kernel_us, "length of each kernel in microseconds (1000)");
  options.number("--streams", &streams, "streams that take turns, 1 to 32 (1)");
  options.flag("--json", &as_json, "one JSON object before the last line");
  options.parse(argc, argv);

  const samples::BusyKernel kernel(static_cast<uint64_t>(kernel_us * 1e3));
  std::vector<cudaStream_t> queues(std::clamp<size_t>(static_cast<size_t>(streams), 1, 32));
  for (cudaStream_t& queue : queues) CHECK(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking));

  // About 5 ms of work in a batch.
  const uint64_t per_batch = std::clamp<uint64_t>(5'000'000 / std::max<uint64_t>(kernel.ns(), 1), 1, 100);
  samples::Pipeline pipeline(queues[0]);
  uint64_t kernels = 0;
  const uint64_t begin_ns = samples::now_ns();
  const uint64_t end_ns = begin_ns + static_cast<uint64_t>(seconds * 1e9);
  do {
    for (uint64_t i = 0; i < per_batch; ++i) kernel.launch(queues[kernels++ % queues.size()]);
    pipeline.batch_queued();
  } while (samples::now_ns() < end_ns);
  CHECK(cudaDeviceSynchronize());
  const uint64_t wall_ns = samples::now_ns() - begin_ns;

  for (cudaStream_t queue : queues) CHECK(cudaStreamDestroy(queue));
  samples::Report report;
  report.add("sample", "busy");
  samples::add_rates(&report, kernels, kernel.ns(), wall_ns);
  return samples::finish(report, as_json);
}
