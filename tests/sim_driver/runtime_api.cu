// SPDX-License-Identifier: Apache-2.0
//
// The runtime API on the simulated driver. Built with each cudart, static and shared, for the legacy and the
// per-thread default stream; every variant must behave the same. Ends with EXIT-SUCCESS.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

static int failures = 0;

static void expect(cudaError_t got, cudaError_t wanted, const char* what, int line) {
  if (got == wanted) return;
  printf("line %d: %s: %s, expected %s\n", line, what, cudaGetErrorName(got), cudaGetErrorName(wanted));
  ++failures;
}
#define OK(call) expect(call, cudaSuccess, #call, __LINE__)
#define FAILS(error, call)                \
  do {                                    \
    expect(call, error, #call, __LINE__); \
    cudaGetLastError();                   \
  } while (0)
#define TRUE(condition)                                  \
  do {                                                   \
    if (!(condition)) {                                  \
      printf("line %d: not %s\n", __LINE__, #condition); \
      ++failures;                                        \
    }                                                    \
  } while (0)

constexpr int kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(float);

__global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

__global__ void busy_for_ns(unsigned long long ns) {
  const long long start = clock64();
  while (clock64() - start < static_cast<long long>(ns)) {
  }
}

__device__ int device_table[10];
__constant__ float constants[4];

static void count_up(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }
static void count_up_callback(cudaStream_t, cudaError_t, void* counter) { count_up(counter); }

static void devices() {
  int count = 0;
  OK(cudaGetDeviceCount(&count));
  TRUE(count == 1);
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 0));
  size_t free = 0, total = 0;
  OK(cudaMemGetInfo(&free, &total));
  TRUE(properties.totalGlobalMem == total && free < total);
}

static void copies_and_symbols() {
  float *a, *b;
  std::vector<float> in(kCount, 3.0f), out(kCount);
  OK(cudaMalloc(&a, kBytes));
  OK(cudaMalloc(&b, kBytes));
  OK(cudaMemcpy(a, in.data(), kBytes, cudaMemcpyHostToDevice));
  OK(cudaMemcpy(b, a, kBytes, cudaMemcpyDeviceToDevice));
  OK(cudaMemcpy(out.data(), b, kBytes, cudaMemcpyDeviceToHost));
  TRUE(in == out);

  int table[10] = {1, 2, 3}, read_back[10] = {};
  float values[4] = {1, 2, 3, 4};
  void* address = nullptr;
  size_t bytes = 0;
  OK(cudaMemcpyToSymbol(device_table, table, sizeof table));
  OK(cudaMemcpyFromSymbol(read_back, device_table, sizeof read_back));
  TRUE(read_back[2] == 3);
  OK(cudaMemcpyToSymbol(constants, values, sizeof values));
  OK(cudaGetSymbolAddress(&address, device_table));
  OK(cudaGetSymbolSize(&bytes, device_table));
  TRUE(bytes == sizeof table);

  void* rows;
  size_t pitch;
  char from[1000], to[1000];
  memset(from, 7, sizeof from);
  OK(cudaMallocPitch(&rows, &pitch, 100, 10));
  OK(cudaMemcpy2D(rows, pitch, from, 100, 100, 10, cudaMemcpyHostToDevice));
  OK(cudaMemcpy2D(to, 100, rows, pitch, 100, 10, cudaMemcpyDeviceToHost));
  TRUE(memcmp(from, to, sizeof from) == 0);
  OK(cudaFree(rows));

  cudaArray_t array;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  std::vector<float> image(64 * 64, 2.0f), copy(64 * 64);
  OK(cudaMallocArray(&array, &format, 64, 64));
  OK(cudaMemcpy2DToArray(array, 0, 0, image.data(), 256, 256, 64, cudaMemcpyHostToDevice));
  OK(cudaMemcpy2DFromArray(copy.data(), 256, array, 0, 0, 256, 64, cudaMemcpyDeviceToHost));
  TRUE(image == copy);
  OK(cudaFreeArray(array));

  OK(cudaFree(a));
  FAILS(cudaErrorInvalidValue, cudaMemcpy(a, in.data(), kBytes, cudaMemcpyHostToDevice));
  FAILS(cudaErrorInvalidValue, cudaFree(a));
  OK(cudaFree(b));
}

static void pointers() {
  void *pinned, *managed, *device;
  int ordinary = 0;
  cudaPointerAttributes attributes;
  OK(cudaMallocHost(&pinned, 4096));
  OK(cudaMallocManaged(&managed, 4096));
  OK(cudaMalloc(&device, 4096));
  OK(cudaPointerGetAttributes(&attributes, pinned));
  TRUE(attributes.type == cudaMemoryTypeHost);
  OK(cudaPointerGetAttributes(&attributes, managed));
  TRUE(attributes.type == cudaMemoryTypeManaged);
  OK(cudaPointerGetAttributes(&attributes, device));
  TRUE(attributes.type == cudaMemoryTypeDevice);
  OK(cudaPointerGetAttributes(&attributes, &ordinary));
  TRUE(attributes.type == cudaMemoryTypeUnregistered);
  memset(managed, 1, 4096);
  OK(cudaFreeHost(pinned));
  OK(cudaFree(managed));
  OK(cudaFree(device));
}

static void kernels(cudaStream_t stream) {
  float *a, *b, *c;
  int n = kCount;
  OK(cudaMalloc(&a, kBytes));
  OK(cudaMalloc(&b, kBytes));
  OK(cudaMalloc(&c, kBytes));
  add<<<4, 256>>>(a, b, c, n);
  OK(cudaGetLastError());
  OK(cudaDeviceSynchronize());
  void* parameters[] = {&a, &b, &c, &n};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(4);
  config.blockDim = dim3(256);
  config.stream = stream;
  OK(cudaLaunchKernelEx(&config, add, (const float*)a, (const float*)b, c, n));
  OK(cudaLaunchCooperativeKernel((void*)add, dim3(4), dim3(128), parameters, 0, stream));
  FAILS(cudaErrorCooperativeLaunchTooLarge,
        cudaLaunchCooperativeKernel((void*)add, dim3(1 << 20), dim3(128), parameters, 0, stream));
  int blocks = 0, grid = 0, threads = 0;
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 0));
  OK(cudaOccupancyMaxPotentialBlockSize(&grid, &threads, add));
  TRUE(blocks > 0 && grid > 0 && threads > 0);
  cudaFuncAttributes attributes;
  OK(cudaFuncGetAttributes(&attributes, add));
  TRUE(attributes.maxThreadsPerBlock == 1024);

  cudaEvent_t start, end;
  float ms = 0;
  OK(cudaEventCreate(&start));
  OK(cudaEventCreate(&end));
  OK(cudaEventRecord(start, stream));
  busy_for_ns<<<1, 32, 0, stream>>>(3'000'000ull);
  OK(cudaEventRecord(end, stream));
  OK(cudaEventSynchronize(end));
  OK(cudaEventElapsedTime(&ms, start, end));
  TRUE(ms > 2.9f && ms < 3.3f);
  OK(cudaStreamSynchronize(stream));
  OK(cudaFree(a));
  OK(cudaFree(b));
  OK(cudaFree(c));
}

static void pools_and_host_functions(cudaStream_t stream) {
  cudaMemPool_t pool;
  uint64_t threshold = UINT64_MAX, reserved = 0, used = 1;
  void* memory;
  OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  OK(cudaMallocAsync(&memory, 100 << 20, stream));
  OK(cudaMemsetAsync(memory, 0, 4096, stream));
  OK(cudaFreeAsync(memory, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  TRUE(reserved >= 100u << 20 && used == 0);
  OK(cudaMemPoolTrimTo(pool, 0));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  TRUE(reserved == 0);

  std::atomic<int> calls{0};
  OK(cudaLaunchHostFunc(stream, count_up, &calls));
  OK(cudaStreamAddCallback(stream, count_up_callback, &calls, 0));
  OK(cudaStreamSynchronize(stream));
  TRUE(calls == 2);
}

static void captured_graph(cudaStream_t stream) {
  float *a, *b;
  std::vector<float> in(kCount, 3.0f), out(kCount);
  cudaStream_t side;
  cudaEvent_t fork, join;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  OK(cudaMalloc(&a, kBytes));
  OK(cudaMalloc(&b, kBytes));
  OK(cudaMemcpy(a, in.data(), kBytes, cudaMemcpyHostToDevice));
  OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  OK(cudaMemcpyAsync(b, a, kBytes, cudaMemcpyDeviceToDevice, stream));
  OK(cudaEventRecord(fork, stream));
  OK(cudaStreamWaitEvent(side, fork, 0));
  busy_for_ns<<<1, 1, 0, side>>>(1000ull);
  OK(cudaEventRecord(join, side));
  OK(cudaStreamWaitEvent(stream, join, 0));
  OK(cudaMemsetAsync(a, 0, kBytes, stream));
  OK(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  TRUE(nodes == 3);
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemcpy(out.data(), b, kBytes, cudaMemcpyDeviceToHost));
  TRUE(out == in);
  OK(cudaMemcpy(out.data(), a, kBytes, cudaMemcpyDeviceToHost));
  TRUE(out[kCount - 1] == 0.0f);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));

  void* memory;
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  FAILS(cudaErrorStreamCaptureUnsupported, cudaMalloc(&memory, 100));
  FAILS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
  OK(cudaStreamDestroy(side));
  OK(cudaFree(a));
  OK(cudaFree(b));
}

static void explicit_graph(cudaStream_t stream) {
  float *a, *b;
  int n = kCount;
  std::atomic<int> calls{0};
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaGraphNode_t kernel, copy, call;
  OK(cudaMalloc(&a, kBytes));
  OK(cudaMalloc(&b, kBytes));
  void* parameters[] = {&a, &a, &b, &n};
  cudaKernelNodeParams launch = {}, seen = {};
  launch.func = (void*)add;
  launch.gridDim = dim3(4);
  launch.blockDim = dim3(256);
  launch.kernelParams = parameters;
  cudaHostNodeParams host = {count_up, &calls};
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddKernelNode(&kernel, graph, nullptr, 0, &launch));
  OK(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, b, a, kBytes, cudaMemcpyDeviceToDevice));
  OK(cudaGraphAddHostNode(&call, graph, &copy, 1, &host));
  OK(cudaGraphKernelNodeGetParams(kernel, &seen));
  TRUE(seen.gridDim.x == 4 && seen.func == launch.func);
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  TRUE(calls == 3);
  cudaGraphExecUpdateResultInfo update;
  OK(cudaGraphExecUpdate(exec, graph, &update));
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  OK(cudaFree(a));
  OK(cudaFree(b));
}

static void exhaustion() {
  std::vector<void*> taken;
  void* memory;
  cudaError_t error;
  while ((error = cudaMalloc(&memory, 1ull << 30)) == cudaSuccess) taken.push_back(memory);
  TRUE(error == cudaErrorMemoryAllocation && taken.size() > 10);
  TRUE(cudaGetLastError() == cudaErrorMemoryAllocation);
  for (void* each : taken) OK(cudaFree(each));
  OK(cudaMalloc(&memory, 1ull << 30));
  OK(cudaFree(memory));
}

int main() {
  devices();
  copies_and_symbols();
  pointers();
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  kernels(stream);
  pools_and_host_functions(stream);
  captured_graph(stream);
  explicit_graph(stream);
  exhaustion();
  OK(cudaStreamDestroy(stream));
  OK(cudaDeviceReset());
  void* memory;
  OK(cudaMalloc(&memory, 100));
  if (failures == 0) printf("EXIT-SUCCESS\n");
  return failures != 0;
}
