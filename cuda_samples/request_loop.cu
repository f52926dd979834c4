// SPDX-License-Identifier: Apache-2.0
//
// A tenant that answers requests: every period it has some kernels to run and waits for the last of them.
// What counts is how long that takes.
#include "support.h"

namespace {

timespec as_timespec(uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 2, period_ms = 20, work_us = 2000, kernel_us = 100;
  bool as_json = false;
  samples::Options options("Runs some kernels every period and times each round.");
  options.number("--seconds", &seconds, "how long (2)");
  options.number("--period-ms", &period_ms, "from one request to the next (20)");
  options.number("--work-us", &work_us, "GPU time of a request in microseconds (2000)");
  options.number("--kernel-us", &kernel_us, "length of each of its kernels in microseconds (100)");
  options.flag("--json", &as_json, "one JSON object before the last line");
  options.parse(argc, argv);

  const samples::BusyKernel kernel(std::max<uint64_t>(static_cast<uint64_t>(kernel_us * 1e3), 1));
  const uint64_t kernels = std::max<uint64_t>(static_cast<uint64_t>(work_us * 1e3) / kernel.ns(), 1);
  const auto period_ns = std::max<uint64_t>(static_cast<uint64_t>(period_ms * 1e6), 1);
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  kernel.launch(stream);
  CHECK(cudaStreamSynchronize(stream));

  std::vector<uint64_t> latencies_ns;
  const uint64_t begin_ns = samples::now_ns();
  const uint64_t end_ns = begin_ns + static_cast<uint64_t>(seconds * 1e9);
  for (uint64_t due_ns = begin_ns; due_ns < end_ns; due_ns += period_ns) {
    // A request that came while the one before was served has waited since then. One that the program slept
    // for begins when the program wakes: the host's timer is not what is measured.
    uint64_t from_ns = due_ns;
    if (samples::now_ns() < due_ns) {
      const timespec due = as_timespec(due_ns);
      while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, nullptr) == EINTR) {
      }
      from_ns = samples::now_ns();
    }
    for (uint64_t i = 0; i < kernels; ++i) kernel.launch(stream);
    CHECK(cudaStreamSynchronize(stream));
    latencies_ns.push_back(samples::now_ns() - from_ns);
  }
  const uint64_t wall_ns = samples::now_ns() - begin_ns;
  CHECK(cudaStreamDestroy(stream));

  samples::Report report;
  report.add("sample", "request_loop");
  samples::add_rates(&report, latencies_ns.size() * kernels, kernel.ns(), wall_ns);
  report.add("requests", static_cast<uint64_t>(latencies_ns.size()));
  report.add("latency_ns", latencies_ns);
  return samples::finish(report, as_json);
}
