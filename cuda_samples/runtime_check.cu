// SPDX-License-Identifier: Apache-2.0
//
// Calls some eighty functions of the CUDA runtime and prints what must be the same wherever it runs: with any
// generation of the runtime, linked either way, with either default stream, with and without a slice. So it
// prints no address, no time and no size that depends on the device; what it knows about those it checks
// itself. With --until-refused it also takes memory by two APIs until it is refused.
#include <cooperative_groups.h>

#include <thread>

#include "until_refused.h"

namespace {

constexpr size_t kBytes = 1 << 20;

__device__ int device_words[256];
__constant__ float constant_words[16];

__global__ void add_to(int* words, int value) { words[threadIdx.x] += value; }

__global__ void meet_all(int* words) {
  cooperative_groups::this_grid().sync();
  words[0] = 1;
}

// Prints one line: what was called, and its outcome.
void say(const char* what, long long value) { printf("%-34s %lld\n", what, value); }
void say(const char* what, const char* value) { printf("%-34s %s\n", what, value); }

void say_error(const char* what, cudaError_t error) {
  say(what, cudaGetErrorName(error));
  cudaGetLastError();
}

bool all_bytes_are(const void* memory, int byte, size_t count) {
  const auto* bytes = static_cast<const unsigned char*>(memory);
  return std::all_of(bytes, bytes + count, [&](unsigned char b) { return b == byte; });
}

void check_device() {
  int runtime = 0, driver = 0, count = 0, device = -1;
  CHECK(cudaRuntimeGetVersion(&runtime));
  CHECK(cudaDriverGetVersion(&driver));
  say("driver is not older than runtime", driver >= runtime);
  CHECK(cudaGetDeviceCount(&count));
  say("devices", count);
  CHECK(cudaSetDevice(0));
  CHECK(cudaGetDevice(&device));
  say("device", device);

  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  say("name", properties.name);
  say("compute capability", properties.major * 10 + properties.minor);
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
  say("multiprocessors agree", value == properties.multiProcessorCount);
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMemoryPoolsSupported, 0));
  say("memory pools", value);
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
  say("warp", value);

  char bus_id[32] = "";
  CHECK(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, 0));
  CHECK(cudaDeviceGetByPCIBusId(&device, bus_id));
  say("device of its own bus id", device);
  unsigned flags = 0;
  CHECK(cudaGetDeviceFlags(&flags));
  int least = 0, greatest = 0;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  say("priorities", least - greatest);
  size_t limit = 0;
  CHECK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 2 << 20));
  CHECK(cudaDeviceGetLimit(&limit, cudaLimitPrintfFifoSize));
  say("printf limit holds", limit >= 2 << 20);
  cudaFuncCache cache;
  CHECK(cudaDeviceGetCacheConfig(&cache));
  CHECK(cudaDeviceSetCacheConfig(cudaFuncCachePreferNone));
  CHECK(cudaDeviceCanAccessPeer(&value, 0, 0));
  say("is its own peer", value);
}

void check_memory_figures() {
  size_t free_bytes = 0, total_bytes = 0;
  CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  say("free is below total", free_bytes < total_bytes);
  say("total agrees with properties", total_bytes == properties.totalGlobalMem);
  // Others may take and give memory meanwhile, the driver itself included: half has to be seen.
  constexpr size_t kTaken = 64 * samples::kMiB;
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, kTaken));
  size_t free_then = 0, free_after = 0;
  CHECK(cudaMemGetInfo(&free_then, &total_bytes));
  say("free sinks by what is taken", free_then + kTaken / 2 <= free_bytes);
  CHECK(cudaFree(memory));
  CHECK(cudaMemGetInfo(&free_after, &total_bytes));
  say("and rises again", free_after >= free_then + kTaken / 2);
}

void check_memory() {
  std::vector<unsigned char> host(kBytes, 7), back(kBytes, 0);
  unsigned char *a = nullptr, *b = nullptr;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&a), kBytes));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&b), kBytes));
  say("aligned", reinterpret_cast<uintptr_t>(a) % 256 == 0);
  CHECK(cudaMemcpy(a, host.data(), kBytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(b, a, kBytes, cudaMemcpyDeviceToDevice));
  CHECK(cudaMemcpy(back.data(), b, kBytes, cudaMemcpyDeviceToHost));
  say("memcpy there and back", all_bytes_are(back.data(), 7, kBytes));
  CHECK(cudaMemset(a, 9, kBytes));
  CHECK(cudaMemcpy(back.data(), a, kBytes, cudaMemcpyDefault));
  say("memset", all_bytes_are(back.data(), 9, kBytes));

  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, a));
  say("type of device memory", attributes.type);
  say("its device", attributes.device);
  CHECK(cudaPointerGetAttributes(&attributes, host.data()));
  say("type of plain host memory", attributes.type);

  unsigned char* rows = nullptr;
  size_t pitch = 0;
  CHECK(cudaMallocPitch(reinterpret_cast<void**>(&rows), &pitch, 1000, 100));
  say("pitch holds a row", pitch >= 1000);
  CHECK(cudaMemset2D(rows, pitch, 3, 1000, 100));
  CHECK(cudaMemcpy2D(back.data(), 1000, rows, pitch, 1000, 100, cudaMemcpyDeviceToHost));
  say("memset and memcpy 2D", all_bytes_are(back.data(), 3, 100'000));
  cudaPitchedPtr volume;
  CHECK(cudaMalloc3D(&volume, make_cudaExtent(64, 8, 4)));
  CHECK(cudaMemset3D(volume, 5, make_cudaExtent(64, 8, 4)));
  cudaMemcpy3DParms copy = {};
  copy.srcPtr = volume;
  copy.dstPtr = make_cudaPitchedPtr(back.data(), 64, 64, 8);
  copy.extent = make_cudaExtent(64, 8, 4);
  copy.kind = cudaMemcpyDeviceToHost;
  CHECK(cudaMemcpy3D(&copy));
  say("memset and memcpy 3D", all_bytes_are(back.data(), 5, 64 * 8 * 4));

  unsigned char* managed = nullptr;
  CHECK(cudaMallocManaged(reinterpret_cast<void**>(&managed), kBytes));
  memset(managed, 4, kBytes);
  CHECK(cudaMemcpy(a, managed, kBytes, cudaMemcpyDefault));
  CHECK(cudaPointerGetAttributes(&attributes, managed));
  say("type of managed memory", attributes.type);

  unsigned char *pinned = nullptr, *mapped = nullptr;
  CHECK(cudaMallocHost(reinterpret_cast<void**>(&pinned), kBytes));
  CHECK(cudaHostAlloc(reinterpret_cast<void**>(&mapped), kBytes, cudaHostAllocMapped));
  void* on_device = nullptr;
  CHECK(cudaHostGetDevicePointer(&on_device, mapped, 0));
  say("mapped memory has an address", on_device != nullptr);
  CHECK(cudaPointerGetAttributes(&attributes, pinned));
  say("type of pinned memory", attributes.type);
  CHECK(cudaHostRegister(host.data(), kBytes, cudaHostRegisterDefault));
  CHECK(cudaHostUnregister(host.data()));

  CHECK(cudaFreeHost(pinned));
  CHECK(cudaFreeHost(mapped));
  CHECK(cudaFree(managed));
  CHECK(cudaFree(volume.ptr));
  CHECK(cudaFree(rows));
  CHECK(cudaFree(b));
  CHECK(cudaFree(a));
  CHECK(cudaFree(nullptr));
}

void check_symbols() {
  int words[256] = {}, back[256] = {};
  std::fill_n(words, 256, 42);
  CHECK(cudaMemcpyToSymbol(device_words, words, sizeof words));
  CHECK(cudaMemcpyFromSymbol(back, device_words, sizeof back));
  say("symbol keeps its words", memcmp(words, back, sizeof words) == 0);
  size_t bytes = 0;
  void* address = nullptr;
  CHECK(cudaGetSymbolSize(&bytes, device_words));
  CHECK(cudaGetSymbolAddress(&address, device_words));
  say("symbol size", static_cast<long long>(bytes));
  const float constants[16] = {1};
  CHECK(cudaMemcpyToSymbol(constant_words, constants, sizeof constants));
}

void CUDART_CB count_up(void* counter) { ++*static_cast<int*>(counter); }
void CUDART_CB count_up_after(cudaStream_t, cudaError_t error, void* counter) {
  if (error == cudaSuccess) ++*static_cast<int*>(counter);
}

void check_streams() {
  cudaStream_t plain, urgent;
  int least = 0, greatest = 0, priority = 0;
  unsigned flags = 0;
  CHECK(cudaStreamCreate(&plain));
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
  CHECK(cudaStreamGetFlags(urgent, &flags));
  CHECK(cudaStreamGetPriority(urgent, &priority));
  say("flags of a stream", flags);
  say("it has the priority asked for", priority == greatest);

  int* words = nullptr;
  CHECK(cudaMallocAsync(reinterpret_cast<void**>(&words), 256 * sizeof *words, plain));
  CHECK(cudaMemsetAsync(words, 0, 256 * sizeof *words, plain));
  add_to<<<1, 256, 0, plain>>>(words, 1);
  CHECK(cudaGetLastError());
  cudaEvent_t begin, end, order;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventCreateWithFlags(&order, cudaEventDisableTiming));
  CHECK(cudaEventRecord(begin, plain));
  add_to<<<1, 256, 0, plain>>>(words, 1);
  CHECK(cudaEventRecord(end, plain));
  CHECK(cudaEventRecord(order, plain));
  CHECK(cudaStreamWaitEvent(urgent, order, 0));
  add_to<<<1, 256, 0, urgent>>>(words, 1);
  int counter = 0;
  CHECK(cudaLaunchHostFunc(urgent, count_up, &counter));
  CHECK(cudaStreamAddCallback(urgent, count_up_after, &counter, 0));
  CHECK(cudaStreamSynchronize(urgent));
  say("host functions called", counter);
  CHECK(cudaEventSynchronize(end));
  CHECK(cudaEventQuery(end));
  float elapsed_ms = -1;
  CHECK(cudaEventElapsedTime(&elapsed_ms, begin, end));
  say("time went on", elapsed_ms >= 0 && elapsed_ms < 10'000);
  CHECK(cudaFreeAsync(words, plain));
  CHECK(cudaStreamSynchronize(plain));
  CHECK(cudaStreamQuery(plain));
  CHECK(cudaStreamQuery(urgent));
  for (cudaEvent_t event : {begin, end, order}) CHECK(cudaEventDestroy(event));
  CHECK(cudaStreamDestroy(plain));
  CHECK(cudaStreamDestroy(urgent));
}

void check_launches() {
  int* words = nullptr;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&words), 1024 * sizeof *words));
  int value = 2;
  void* arguments[] = {&words, &value};
  CHECK(cudaLaunchKernel(reinterpret_cast<void*>(add_to), dim3(1), dim3(64), arguments, 0, nullptr));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(2);
  config.blockDim = dim3(32);
  CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<void*>(add_to), arguments));
  void* only_words[] = {&words};
  CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(meet_all), dim3(2), dim3(32), only_words, 0,
                                    nullptr));
  CHECK(cudaDeviceSynchronize());

  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, add_to));
  say("a block may have threads", attributes.maxThreadsPerBlock >= 256);
  CHECK(cudaFuncSetAttribute(add_to, cudaFuncAttributeMaxDynamicSharedMemorySize, 32 << 10));
  int blocks = 0, grid = 0, block = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add_to, 128, 0));
  say("blocks fit", blocks > 0);
  CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, add_to));
  say("a block size is suggested", grid > 0 && block > 0);

  // The default stream of several threads: one and the same, or one for each.
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([=] {
      for (int j = 0; j < 50; ++j) {
        add_to<<<1, 64>>>(words + 64 * i, 1);
        CHECK(cudaGetLastError());
      }
      CHECK(cudaStreamSynchronize(nullptr));
    });
  }
  for (std::thread& thread : threads) thread.join();
  say("threads that launched", static_cast<long long>(threads.size()));

  add_to<<<1, 4096>>>(words, 1);
  // Which error it is depends on whether the runtime looks itself.
  say("a block that is too big is refused", cudaGetLastError() != cudaSuccess);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(words));
}

void check_graphs() {
  int* words = nullptr;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&words), 256 * sizeof *words));
  cudaGraph_t graph, copy;
  cudaGraphNode_t clear, kernel;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaMemsetParams memset_node = {};
  memset_node.dst = words;
  memset_node.elementSize = 4;
  memset_node.width = 256;
  memset_node.height = 1;
  CHECK(cudaGraphAddMemsetNode(&clear, graph, nullptr, 0, &memset_node));
  int value = 3;
  void* arguments[] = {&words, &value};
  cudaKernelNodeParams kernel_node = {};
  kernel_node.func = reinterpret_cast<void*>(add_to);
  kernel_node.gridDim = dim3(1);
  kernel_node.blockDim = dim3(64);
  kernel_node.kernelParams = arguments;
  CHECK(cudaGraphAddKernelNode(&kernel, graph, &clear, 1, &kernel_node));
  size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  say("nodes of a graph", static_cast<long long>(nodes));
  CHECK(cudaGraphClone(&copy, graph));
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiateWithFlags(&executable, copy, 0));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaGraphUpload(executable, stream));
  CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaStreamSynchronize(stream));

  cudaGraph_t captured;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  add_to<<<1, 64, 0, stream>>>(words, 1);
  CHECK(cudaMemcpyAsync(words + 64, words, 64 * sizeof *words, cudaMemcpyDeviceToDevice, stream));
  cudaStreamCaptureStatus status;
  CHECK(cudaStreamIsCapturing(stream, &status));
  say("capture status", status);
  CHECK(cudaStreamEndCapture(stream, &captured));
  CHECK(cudaGraphGetNodes(captured, nullptr, &nodes));
  say("nodes captured", static_cast<long long>(nodes));

  CHECK(cudaGraphExecDestroy(executable));
  for (cudaGraph_t g : {graph, copy, captured}) CHECK(cudaGraphDestroy(g));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(words));
}

void check_pools() {
  cudaMemPool_t pool;
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  uint64_t keep = 64 * samples::kMiB, used = 0, reserved = 0;
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  void* memory = nullptr;
  CHECK(cudaMallocAsync(&memory, 8 * samples::kMiB, nullptr));
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  say("pool's use in MiB", static_cast<long long>(used / samples::kMiB));
  say("pool reserves what it uses", reserved >= used);
  CHECK(cudaFreeAsync(memory, nullptr));
  CHECK(cudaStreamSynchronize(nullptr));
  CHECK(cudaMemPoolTrimTo(pool, 0));
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  say("pool's reserve after trimming", static_cast<long long>(reserved));
}

void check_arrays() {
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  cudaArray_t array = nullptr;
  CHECK(cudaMallocArray(&array, &format, 64, 32));
  cudaChannelFormatDesc seen;
  cudaExtent extent;
  unsigned flags = 0;
  CHECK(cudaArrayGetInfo(&seen, &extent, &flags, array));
  say("array's width", static_cast<long long>(extent.width));
  say("array's bits", seen.x);
  CHECK(cudaFreeArray(array));
}

void check_errors() {
  void* memory = nullptr;
  say_error("more than any GPU has", cudaMalloc(&memory, 1ull << 46));
  say_error("a device that is not there", cudaSetDevice(77));
  say_error("memory that is not the GPU's", cudaMemset(nullptr, 0, 4));
  say("no error is left", cudaGetErrorString(cudaGetLastError()));
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, cudaEnableDefault, &found));
  say("cuMemAlloc is found", found == cudaDriverEntryPointSuccess && function != nullptr);
  say_error("cuNoSuchFunction", cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function, 12000,
                                                                 cudaEnableDefault, &found));
}

void check_until_refused(bool as_json) {
  std::vector<samples::Report> results;
  for (const samples::Api& api : samples::apis()) {
    if (strcmp(api.name, "malloc") != 0 && strcmp(api.name, "async") != 0) continue;
    size_t free_bytes, total_bytes;
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    const auto taker = api.make();
    const samples::Taken taken = samples::take_until_refused(taker.get(), 256 * samples::kMiB, total_bytes);
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    taker->give_all();
    samples::Report result;
    result.add("api", api.name);
    result.add("taken_bytes", taken.bytes);
    result.add("error", taken.error);
    result.add("total_bytes", static_cast<uint64_t>(total_bytes));
    result.add("free_refused_bytes", static_cast<uint64_t>(free_bytes));
    results.push_back(result);
  }
  samples::Report report;
  report.add("sample", "runtime_check");
  report.add("apis", results);
  printf("%s", as_json ? (report.json() + '\n').c_str() : report.lines().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  bool until_refused = false, as_json = false;
  samples::Options options("Calls the CUDA runtime and prints what must be the same everywhere.");
  options.flag("--until-refused", &until_refused, "also take memory until it is refused");
  options.flag("--json", &as_json, "print what --until-refused finds as JSON");
  options.parse(argc, argv);

  check_device();
  check_memory_figures();
  check_memory();
  check_symbols();
  check_streams();
  check_launches();
  check_graphs();
  check_pools();
  check_arrays();
  check_errors();
  if (until_refused) check_until_refused(as_json);
  CHECK(cudaDeviceReset());
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, kBytes));
  say("usable after a reset", memory != nullptr);
  CHECK(cudaFree(memory));
  printf("EXIT-SUCCESS\n");
}
