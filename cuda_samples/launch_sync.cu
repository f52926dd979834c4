// SPDX-License-Identifier: Apache-2.0
//
// A tenant that waits for each kernel before it launches the next: one kernel outstanding at most, so that
// what it gets shows every delay on the way to the GPU.
#include "support.h"

int main(int argc, char** argv) {
  double seconds = 2, kernel_us = 1000, pause_us = 0;
  bool as_json = false, default_stream = false;
  samples::Options options("Launches a kernel, waits for it, and so on.");
  options.number("--seconds", &seconds, "how long (2)");
  options.number("--kernel-us", &kernel_us, "length of each kernel in microseconds (1000)");
  options.number("--pause-us", &pause_us, "sleep between a kernel and the next launch (0)");
  options.flag("--default-stream", &default_stream, "use the default stream and cudaDeviceSynchronize");
  options.flag("--json", &as_json, "one JSON object before the last line");
  options.parse(argc, argv);

  const samples::BusyKernel kernel(static_cast<uint64_t>(kernel_us * 1e3));
  cudaStream_t stream = nullptr;
  if (!default_stream) CHECK(cudaStreamCreate(&stream));
  const auto pause_ns = static_cast<uint64_t>(pause_us * 1e3);
  const timespec pause = {static_cast<time_t>(pause_ns / 1'000'000'000),
                          static_cast<long>(pause_ns % 1'000'000'000)};

  std::vector<uint64_t> round_trips_ns;
  const uint64_t begin_ns = samples::now_ns();
  const uint64_t end_ns = begin_ns + static_cast<uint64_t>(seconds * 1e9);
  uint64_t launched_ns = begin_ns;
  do {
    kernel.launch(stream);
    CHECK(default_stream ? cudaDeviceSynchronize() : cudaStreamSynchronize(stream));
    round_trips_ns.push_back(samples::now_ns() - launched_ns);
    if (pause_ns != 0) nanosleep(&pause, nullptr);
    launched_ns = samples::now_ns();
  } while (launched_ns < end_ns);
  const uint64_t wall_ns = launched_ns - begin_ns;
  if (!default_stream) CHECK(cudaStreamDestroy(stream));

  std::sort(round_trips_ns.begin(), round_trips_ns.end());
  const size_t count = round_trips_ns.size();
  samples::Report report;
  report.add("sample", "launch_sync");
  samples::add_rates(&report, count, kernel.ns(), wall_ns);
  report.add("round_trip_p50_us", round_trips_ns[count / 2] * 1e-3);
  report.add("round_trip_p99_us", round_trips_ns[count * 99 / 100] * 1e-3);
  return samples::finish(report, as_json);
}
