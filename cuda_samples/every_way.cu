// SPDX-License-Identifier: Apache-2.0
//
// Takes memory of GPU 0 in one of the ways that the driver has, until it is refused, and gives it back. It
// stops three times, until a line comes on its standard input: READY, HOLDING (as much as it got, and the
// error that it got then) and GIVEN (everything back). What shares memory with another process is importer.h.
#include "driver_ways.h"
#include "importer.h"

namespace {

using namespace samples::driver_ways;
using samples::Way;

std::string directory_of(const char* program) {
  const std::string path = program;
  return path.substr(0, path.rfind('/') + 1);
}

struct NamedWay {
  const char* name;
  std::unique_ptr<Way> (*make)(const char* program);
};

template <typename T>
std::unique_ptr<Way> make(const char*) {
  return std::make_unique<T>();
}
template <CUmemLocationType type>
std::unique_ptr<Way> make_physical(const char*) {
  return std::make_unique<Physical>(type);
}
template <CUlimit limit, size_t step>
std::unique_ptr<Way> make_limit(const char*) {
  return std::make_unique<Limit>(limit, step);
}
template <samples::Import how>
std::unique_ptr<Way> make_shared_by_handle(const char* program) {
  return std::make_unique<samples::SharedByHandle>(program, how);
}
std::unique_ptr<Way> make_shared_by_ipc(const char* program) {
  return std::make_unique<samples::SharedByIpc>(program);
}
std::unique_ptr<Way> make_module(const char* program) {
  return std::make_unique<Module>(directory_of(program) + "big_variable.fatbin");
}

const NamedWay kWays[] = {
    {"linear", make<Linear>},
    {"small", make<Small>},
    {"pitch", make<Pitch>},
    {"managed", make<Managed>},
    {"host", make<Host>},
    {"registered", make<Registered>},
    {"array", make<Array>},
    {"array-3d", make<Array3D>},
    {"mipmap", make<Mipmap>},
    {"sparse", make<SparseTiles>},
    {"async", make<Async>},
    {"own-pool", make<OwnPool>},
    {"300-pools", make<ManyPools>},
    {"graph", make<GraphNode>},
    {"captured", make<CapturedAsync>},
    {"physical", make_physical<CU_MEM_LOCATION_TYPE_DEVICE>},
    {"physical-host", make_physical<CU_MEM_LOCATION_TYPE_HOST>},
    {"physical-numa", make_physical<CU_MEM_LOCATION_TYPE_HOST_NUMA>},
    {"mapped", make<Mapped>},
    {"multicast", make<Multicast>},
    {"ipc", make_shared_by_ipc},
    {"shareable", make_shared_by_handle<samples::Import::kHandle>},
    {"external", make_shared_by_handle<samples::Import::kExternal>},
    {"module", make_module},
    {"context", make<Context>},
    {"green-context", make<GreenContext>},
    {"stack-limit", make_limit<CU_LIMIT_STACK_SIZE, 1024>},
    {"printf-limit", make_limit<CU_LIMIT_PRINTF_FIFO_SIZE, samples::kPieceBytes>},
    {"heap-limit", make_limit<CU_LIMIT_MALLOC_HEAP_SIZE, samples::kPieceBytes>},
};

void tell(const char* state, unsigned pieces, int error) {
  printf("%s {\"pieces\": %u, \"error\": %d}\n", state, pieces, error);
  fflush(stdout);
  char line[64];
  if (fgets(line, sizeof line, stdin) == nullptr) exit(1);  // whoever asked is gone
}

[[noreturn]] void fail(const char* program) {
  fprintf(stderr, "usage: %s WAY MOST_PIECES\nways:", program);
  for (const NamedWay& way : kWays) fprintf(stderr, " %s", way.name);
  fprintf(stderr, "\n");
  exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], samples::kImporter) == 0) return samples::import_until_end();
  if (argc != 3) fail(argv[0]);
  const auto* way = std::find_if(std::begin(kWays), std::end(kWays),
                                 [&](const NamedWay& known) { return strcmp(known.name, argv[1]) == 0; });
  const unsigned long most = strtoul(argv[2], nullptr, 10);
  if (way == std::end(kWays) || most == 0) fail(argv[0]);

  const std::unique_ptr<Way> taker = way->make(argv[0]);
  taker->begin();
  tell("READY", 0, 0);
  unsigned pieces = 0;
  int error = 0;
  while (pieces < most && (error = taker->take()) == 0) ++pieces;
  tell("HOLDING", pieces, error);
  taker->give_all();
  tell("GIVEN", 0, 0);
  puts("EXIT-SUCCESS");
  return 0;
}
