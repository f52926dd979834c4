// SPDX-License-Identifier: Apache-2.0
//
// A tenant that launches no kernel itself: it captures a chain of kernels once and replays the graph.
#include "support.h"

int main(int argc, char** argv) {
  double seconds = 2, kernel_us = 100, nodes = 10;
  bool as_json = false;
  samples::Options options("Replays a graph of kernels without a pause.");
  options.number("--seconds", &seconds, "how long (2)");
  options.number("--kernel-us", &kernel_us, "length of each kernel in microseconds (100)");
  options.number("--nodes", &nodes, "kernels in the graph, 1 to 1000 (10)");
  options.flag("--json", &as_json, "one JSON object before the last line");
  options.parse(argc, argv);

  const samples::BusyKernel kernel(static_cast<uint64_t>(kernel_us * 1e3));
  const auto node_count = std::clamp<uint64_t>(static_cast<uint64_t>(nodes), 1, 1000);
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (uint64_t i = 0; i < node_count; ++i) kernel.launch(stream);
  CHECK(cudaStreamEndCapture(stream, &graph));
  size_t captured = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &captured));
  EXPECT(captured == node_count);
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiateWithFlags(&executable, graph, 0));

  const uint64_t graph_ns = kernel.ns() * node_count;
  const uint64_t per_batch = samples::Pipeline::kernels_per_batch(graph_ns);
  samples::Pipeline pipeline(stream);
  uint64_t replays = 0;
  const uint64_t begin_ns = samples::now_ns();
  const uint64_t end_ns = begin_ns + static_cast<uint64_t>(seconds * 1e9);
  do {
    for (uint64_t i = 0; i < per_batch; ++i) CHECK(cudaGraphLaunch(executable, stream));
    replays += per_batch;
    pipeline.batch_queued();
  } while (samples::now_ns() < end_ns);
  CHECK(cudaStreamSynchronize(stream));
  const uint64_t wall_ns = samples::now_ns() - begin_ns;

  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  samples::Report report;
  report.add("sample", "graph_replay");
  report.add("replays", replays);
  samples::add_rates(&report, replays * node_count, kernel.ns(), wall_ns);
  return samples::finish(report, as_json);
}
