// SPDX-License-Identifier: Apache-2.0
//
// A tenant that takes all the memory it can get, by each API in turn, gives it back, and takes it again.
#include <unistd.h>

#include "until_refused.h"

namespace {

struct Memory {
  size_t free_bytes, total_bytes;
};

Memory seen() {
  Memory memory;
  CHECK(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes));
  return memory;
}

void hold(double seconds, const char* api) {
  if (seconds == 0) return;
  printf("HOLDING %s\n", api);
  fflush(stdout);
  const timespec pause = {static_cast<time_t>(seconds),
                          static_cast<long>((seconds - static_cast<time_t>(seconds)) * 1e9)};
  nanosleep(&pause, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  std::string wanted = "malloc";
  double chunk_mib = 256, hold_seconds = 0;
  bool as_json = false;
  samples::Options options("Takes device memory until it is refused.");
  options.text("--api", &wanted, "malloc, pitch, managed, async, pool, vmm, array, mipmap or all (malloc)");
  options.number("--chunk-mib", &chunk_mib, "first request in MiB, halved at each refusal down to 2 (256)");
  options.number("--hold", &hold_seconds, "keep it for that many seconds before giving it back (0)");
  options.flag("--json", &as_json, "one JSON object before the last line");
  options.parse(argc, argv);

  std::vector<samples::Api> apis = samples::apis();
  if (wanted != "all") {
    std::erase_if(apis, [&](const samples::Api& api) { return wanted != api.name; });
    if (apis.empty()) {
      fprintf(stderr, "%s: no API '%s'; see --help\n", argv[0], wanted.c_str());
      return 2;
    }
  }
  const uint64_t chunk_bytes =
      std::max<uint64_t>(static_cast<uint64_t>(chunk_mib) * samples::kMiB, samples::kSmallestChunk);

  std::vector<samples::Report> results;
  for (const samples::Api& api : apis) {
    const std::unique_ptr<samples::Taker> taker = api.make();
    const Memory before = seen();
    // Managed memory may go beyond what the GPU has; that is the most that is asked for.
    const samples::Taken taken =
        samples::take_until_refused(taker.get(), chunk_bytes, before.total_bytes + chunk_bytes);
    const Memory refused = seen();
    hold(hold_seconds, api.name);
    taker->give_all();
    const Memory after = seen();
    const samples::Taken again =
        samples::take_until_refused(taker.get(), chunk_bytes, before.total_bytes + chunk_bytes);
    taker->give_all();

    samples::Report result;
    result.add("api", api.name);
    result.add("taken_bytes", taken.bytes);
    result.add("error", taken.error);
    result.add("total_bytes", static_cast<uint64_t>(before.total_bytes));
    result.add("free_before_bytes", static_cast<uint64_t>(before.free_bytes));
    result.add("free_refused_bytes", static_cast<uint64_t>(refused.free_bytes));
    result.add("free_after_bytes", static_cast<uint64_t>(after.free_bytes));
    result.add("taken_again_bytes", again.bytes);
    results.push_back(result);
  }

  samples::Report report;
  report.add("sample", "hog");
  report.add("pid", static_cast<uint64_t>(getpid()));
  report.add("apis", results);
  return samples::finish(report, as_json);
}
