// SPDX-License-Identifier: Apache-2.0
//
// random_tenant REPORT_FD SEED: takes and frees device memory at random, by every API that there is, until it
// is killed. SIGUSR1: it finishes what it is doing and holds what it holds. Any answer of the driver but
// success and "out of memory" ends it with status 1.
//
// It has no CUDA runtime in it, so that it starts in milliseconds.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <random>
#include <vector>

#include "../behaviour/behaviour.h"
#include "report.h"

namespace {

constexpr size_t kMostPieces = 48;
constexpr uint64_t kRowBytes = 4096 * 16;  // of the arrays below

struct Piece {
  const struct Way* way = nullptr;
  uint64_t handle = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
};

struct Tenant {
  CUdevice device = 0;
  CUstream stream = nullptr;
  CUmemoryPool pool = nullptr;
};
Tenant self;

struct Way {
  const char* name;
  CUresult (*take)(Piece* piece);
  CUresult (*free)(const Piece& piece);
};

CUmemAllocationProp on_device() {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {self.device}};
  return prop;
}

CUDA_ARRAY3D_DESCRIPTOR rows(uint64_t bytes) {
  CUDA_ARRAY3D_DESCRIPTOR array = {};
  array.Width = 4096;
  array.Height = (bytes + kRowBytes - 1) / kRowBytes;
  array.Format = CU_AD_FORMAT_FLOAT;
  array.NumChannels = 4;
  return array;
}

CUresult free_linear(const Piece& piece) { return cuMemFree(piece.address); }
CUresult free_async(const Piece& piece) { return cuMemFreeAsync(piece.address, self.stream); }
CUresult free_array(const Piece& piece) { return cuArrayDestroy(reinterpret_cast<CUarray>(piece.handle)); }

CUresult take_linear(Piece* piece) {
  CUdeviceptr pointer = 0;
  const CUresult result = cuMemAlloc(&pointer, piece->bytes);
  piece->address = pointer;
  return result;
}

CUresult take_pitch(Piece* piece) {
  CUdeviceptr pointer = 0;
  size_t pitch = 0;
  const CUresult result = cuMemAllocPitch(&pointer, &pitch, 3000, piece->bytes / 4096 + 1, 4);
  piece->address = pointer;
  return result;
}

CUresult take_managed(Piece* piece) {
  CUdeviceptr pointer = 0;
  const CUresult result = cuMemAllocManaged(&pointer, piece->bytes, CU_MEM_ATTACH_GLOBAL);
  piece->address = pointer;
  return result;
}

CUresult take_async(Piece* piece) {
  CUdeviceptr pointer = 0;
  const CUresult result = cuMemAllocAsync(&pointer, piece->bytes, self.stream);
  piece->address = pointer;
  return result;
}

CUresult take_from_pool(Piece* piece) {
  CUdeviceptr pointer = 0;
  const CUresult result = cuMemAllocFromPoolAsync(&pointer, piece->bytes, self.pool, self.stream);
  piece->address = pointer;
  return result;
}

CUresult take_physical(Piece* piece) {
  piece->bytes = (piece->bytes + kGranule - 1) / kGranule * kGranule;
  const CUmemAllocationProp prop = on_device();
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = cuMemCreate(&handle, piece->bytes, &prop, 0);
  if (result != CUDA_SUCCESS) return result;
  CUdeviceptr address = 0;
  OK(cuMemAddressReserve(&address, piece->bytes, 0, 0, 0));
  OK(cuMemMap(address, piece->bytes, 0, handle, 0));
  // The mapping keeps the memory.
  OK(cuMemRelease(handle));
  piece->address = address;
  return result;
}

CUresult free_physical(const Piece& piece) {
  const CUresult result = cuMemUnmap(piece.address, piece.bytes);
  OK(cuMemAddressFree(piece.address, piece.bytes));
  return result;
}

CUresult take_array(Piece* piece) {
  const CUDA_ARRAY3D_DESCRIPTOR plane = rows(piece->bytes);
  const CUDA_ARRAY_DESCRIPTOR flat = {plane.Width, plane.Height, plane.Format, plane.NumChannels};
  CUarray array = nullptr;
  const CUresult result = cuArrayCreate(&array, &flat);
  piece->handle = reinterpret_cast<uint64_t>(array);
  return result;
}

CUresult take_array_3d(Piece* piece) {
  CUDA_ARRAY3D_DESCRIPTOR solid = rows(piece->bytes);
  solid.Width /= 4;
  solid.Depth = 4;
  CUarray array = nullptr;
  const CUresult result = cuArray3DCreate(&array, &solid);
  piece->handle = reinterpret_cast<uint64_t>(array);
  return result;
}

CUresult take_mipmap(Piece* piece) {
  const CUDA_ARRAY3D_DESCRIPTOR plane = rows(piece->bytes);
  CUmipmappedArray array = nullptr;
  const CUresult result = cuMipmappedArrayCreate(&array, &plane, 1);
  piece->handle = reinterpret_cast<uint64_t>(array);
  return result;
}

CUresult free_mipmap(const Piece& piece) {
  return cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(piece.handle));
}

// A graph whose first node takes memory and whose second gives it back; what it takes stays reserved for
// graphs until it is trimmed.
CUresult take_by_graph(Piece* piece) {
  CUgraph graph = nullptr;
  OK(cuGraphCreate(&graph, 0));
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {self.device}};
  params.bytesize = piece->bytes;
  CUgraphNode take = nullptr, give = nullptr;
  OK(cuGraphAddMemAllocNode(&take, graph, nullptr, 0, &params));
  OK(cuGraphAddMemFreeNode(&give, graph, &take, 1, params.dptr));
  CUgraphExec executable = nullptr;
  CUresult result = cuGraphInstantiate(&executable, graph, 0);
  if (result == CUDA_SUCCESS) {
    result = cuGraphLaunch(executable, self.stream);
    if (result == CUDA_SUCCESS) {
      piece->handle = reinterpret_cast<uint64_t>(executable);
    } else {
      OK(cuGraphExecDestroy(executable));
    }
  }
  OK(cuGraphDestroy(graph));
  return result;
}

CUresult free_of_graph(const Piece& piece) {
  OK(cuStreamSynchronize(self.stream));
  const CUresult result = cuGraphExecDestroy(reinterpret_cast<CUgraphExec>(piece.handle));
  OK(cuDeviceGraphMemTrim(self.device));
  return result;
}

// What a second context takes nobody asks for as memory.
CUresult take_context(Piece* piece) {
  CUcontext context = nullptr;
  const CUresult result = cuCtxCreate(&context, nullptr, 0, self.device);
  if (result == CUDA_SUCCESS) OK(cuCtxPopCurrent(&context));
  piece->handle = reinterpret_cast<uint64_t>(context);
  return result;
}

CUresult free_context(const Piece& piece) { return cuCtxDestroy(reinterpret_cast<CUcontext>(piece.handle)); }

constexpr std::array<Way, 10> kWays = {{{"malloc", take_linear, free_linear},
                                        {"pitch", take_pitch, free_linear},
                                        {"managed", take_managed, free_linear},
                                        {"async", take_async, free_async},
                                        {"pool", take_from_pool, free_async},
                                        {"physical", take_physical, free_physical},
                                        {"array", take_array, free_array},
                                        {"3d array", take_array_3d, free_array},
                                        {"mipmap", take_mipmap, free_mipmap},
                                        {"graph", take_by_graph, free_of_graph}}};
constexpr Way kSecondContext = {"context", take_context, free_context};

volatile sig_atomic_t told_to_pause = 0;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t below(uint64_t end) { return std::uniform_int_distribution<uint64_t>(0, end - 1)(engine_); }
  // From one byte to 64 MiB, small ones as often as large ones.
  uint64_t bytes() { return 1 + below(uint64_t{1} << (4 + below(23))); }

 private:
  std::mt19937_64 engine_;
};

[[noreturn]] void hold(stress::Report& report) {
  report.phase = stress::Phase::kPaused;
  for (;;) pause();
}

// The context too is charged, so in a full slice there is none to be had for a while.
void start_when_there_is_room(stress::Report& report) {
  OK(cuInit(0));
  OK(cuDeviceGet(&self.device, 0));
  CUcontext context = nullptr;
  for (;;) {
    const CUresult result = cuDevicePrimaryCtxRetain(&context, self.device);
    if (result == CUDA_SUCCESS) break;
    MUST_BE(result, CUDA_ERROR_OUT_OF_MEMORY);
    report.refusals++;
    if (told_to_pause != 0) hold(report);
    usleep(1000);
  }
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING));
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {self.device}};
  OK(cuMemPoolCreate(&self.pool, &props));
}

[[noreturn]] void unexpected(const Piece& piece, const char* what, CUresult result) {
  printf("%s %s of %llu bytes gave %d\n", piece.way->name, what, static_cast<unsigned long long>(piece.bytes),
         static_cast<int>(result));
  exit(1);
}

void take(Random& random, stress::Report& report, std::vector<Piece>* pieces) {
  Piece piece;
  piece.way = random.below(200) == 0 ? &kSecondContext : &kWays[random.below(kWays.size())];
  piece.bytes = random.bytes();
  report.in_call = 1;
  const CUresult result = piece.way->take(&piece);
  report.in_call = 0;
  if (result == CUDA_SUCCESS) {
    pieces->push_back(piece);
  } else {
    if (result != CUDA_ERROR_OUT_OF_MEMORY) unexpected(piece, "take", result);
    report.refusals++;
  }
}

void free_one(Random& random, stress::Report& report, std::vector<Piece>* pieces) {
  std::swap((*pieces)[random.below(pieces->size())], pieces->back());
  report.in_call = 1;
  const CUresult result = pieces->back().way->free(pieces->back());
  if (result != CUDA_SUCCESS) unexpected(pieces->back(), "free", result);
  report.in_call = 0;
  pieces->pop_back();
}

}  // namespace

int main(int argc, char** argv) {
  // A storm that stops at a fault leaves nobody behind.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto* const shared =
      static_cast<stress::Report*>(mmap(nullptr, sizeof(stress::Report), PROT_READ | PROT_WRITE, MAP_SHARED,
                                        static_cast<int>(argument(argc, argv, 1)), 0));
  MUST(shared != MAP_FAILED);
  stress::Report& report = *shared;
  Random random(argument(argc, argv, 2));
  signal(SIGUSR1, [](int) { told_to_pause = 1; });

  report.phase = stress::Phase::kStarting;
  start_when_there_is_room(report);
  report.phase = stress::Phase::kRunning;

  std::vector<Piece> pieces;
  while (told_to_pause == 0) {
    const uint64_t chance = random.below(100);
    if (chance < 4) {
      OK(cuStreamSynchronize(self.stream));
    } else if (chance < 6) {
      OK(cuMemPoolTrimTo(self.pool, 0));
    } else if (pieces.empty() || (chance < 55 && pieces.size() < kMostPieces)) {
      take(random, report, &pieces);
    } else {
      free_one(random, report, &pieces);
    }
    report.operations++;
  }
  OK(cuCtxSynchronize());
  hold(report);
}
