// SPDX-License-Identifier: Apache-2.0
//
// The hooks of Launch rows. Each is its row's line in the table below: which argument is the stream, and what
// the duration depends on. The gate is in gate.h.
#include "interpose/gate.h"
#include "interpose/graph_memory.h"
#include "limiter/kernel_estimates.h"

namespace hook {
namespace {

using gate::StreamName;
using limiter::launch_key;

uint64_t bits(const void* handle) { return reinterpret_cast<uint64_t>(handle); }
constexpr uint64_t both(unsigned high, unsigned low) { return uint64_t{high} << 32 | low; }
// Sets of similar size take similar time.
constexpr uint64_t magnitude(uint64_t bytes) {
  return bytes == 0 ? 0 : 64 - static_cast<uint64_t>(__builtin_clzll(bytes));
}

// What a function launches, told by its arguments: the stream is asked for on the fast path, the key on the
// slow one.
template <bool per_thread>
struct Kernel {
  static StreamName stream(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           CUstream stream, void**, void** = nullptr) {
    return {stream, per_thread};
  }
  static uint64_t key(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned, CUstream, void**,
                      void** = nullptr) {
    return launch_key(bits(function), both(grid_x, grid_y), both(grid_z, block_x), both(block_y, block_z));
  }
};

template <bool per_thread>
struct KernelEx {
  static bool names_stream(const CUlaunchConfig* config, CUfunction, void**, void**) {
    return config != nullptr;
  }
  static StreamName stream(const CUlaunchConfig* config, CUfunction, void**, void**) {
    return {config->hStream, per_thread};
  }
  static uint64_t key(const CUlaunchConfig* config, CUfunction function, void**, void**) {
    return launch_key(bits(function), both(config->gridDimX, config->gridDimY),
                      both(config->gridDimZ, config->blockDimX), both(config->blockDimY, config->blockDimZ));
  }
};

// The oldest forms: the block's shape is the function's, set beforehand.
struct Grid {
  static StreamName stream(CUfunction, int = 0, int = 0, CUstream stream = nullptr) {
    return {stream, false};
  }
  static uint64_t key(CUfunction function, int width = 1, int height = 1, CUstream = nullptr) {
    return launch_key(bits(function), both(static_cast<unsigned>(width), static_cast<unsigned>(height)));
  }
};

// One kernel on several devices: it waits at the gate of the first one's stream.
struct MultiDevice {
  static bool names_stream(CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned) {
    return launches != nullptr && count != 0;
  }
  static StreamName stream(CUDA_LAUNCH_PARAMS* launches, unsigned, unsigned) {
    return {launches[0].hStream, false};
  }
  static uint64_t key(CUDA_LAUNCH_PARAMS* launches, unsigned, unsigned) {
    return launch_key(bits(launches[0].function), both(launches[0].gridDimX, launches[0].gridDimY),
                      both(launches[0].gridDimZ, launches[0].blockDimX));
  }
};

template <bool per_thread>
struct Graph {
  static StreamName stream(CUgraphExec, CUstream stream) { return {stream, per_thread}; }
  static uint64_t key(CUgraphExec graph, CUstream) { return launch_key(bits(graph)); }
};

// Without a stream argument: the default stream of the form.
template <bool per_thread, typename Value>
struct Set {
  static StreamName stream(CUdeviceptr, Value, size_t, CUstream stream = nullptr) {
    return {stream, per_thread};
  }
  static uint64_t key(CUdeviceptr, Value, size_t count, CUstream = nullptr) {
    return launch_key(0, magnitude(count * sizeof(Value)));
  }
};

template <bool per_thread, typename Value>
struct Set2D {
  static StreamName stream(CUdeviceptr, size_t, Value, size_t, size_t, CUstream stream = nullptr) {
    return {stream, per_thread};
  }
  static uint64_t key(CUdeviceptr, size_t, Value, size_t width, size_t height, CUstream = nullptr) {
    return launch_key(1, magnitude(width * sizeof(Value) * height));
  }
};

template <uint32_t index, typename What, typename... Arguments>
[[gnu::always_inline]] inline CUresult pass_gate(Arguments... arguments) noexcept {
  gate::Launch launch = {.name = What::stream(arguments...), .key = What::key(arguments...)};
  gate::enter(launch);
  return gate::leave(launch, real<index>(arguments...));
}

// Whether the arguments say where the launch goes. If not, the driver will refuse it: nothing waits for that.
template <typename What, typename... Arguments>
[[gnu::always_inline]] inline bool names_stream(Arguments... arguments) {
  if constexpr (requires { What::names_stream(arguments...); }) return What::names_stream(arguments...);
  return true;
}

template <uint32_t index, typename What, typename... Arguments>
[[gnu::cold, gnu::noinline]] CUresult slow(Arguments... arguments) noexcept {
  if (!names_stream<What>(arguments...)) return real<index>(arguments...);
  return pass_gate<index, What>(arguments...);
}

// A hit is a jump to the driver, with every argument where the caller put it; the slow path is a jump too.
template <uint32_t index, typename What, typename... Arguments>
[[gnu::always_inline]] inline CUresult launch(Arguments... arguments) noexcept {
  if (names_stream<What>(arguments...) && gate::passes(What::stream(arguments...))) [[likely]] {
    return driver_slot<index>()(arguments...);
  }
  return slow<index, What>(arguments...);
}

// A graph that allocates is charged when its turn has come, not while it waits.
template <uint32_t index, bool per_thread>
[[gnu::cold, gnu::noinline]] CUresult launch_allocating(CUgraphExec graph, CUstream stream) noexcept {
  const StreamName name = Graph<per_thread>::stream(graph, stream);
  if (gate::is_capturing(name)) return real<index>(graph, stream);
  gate::Launch launch = {.name = name, .key = Graph<per_thread>::key(graph, stream)};
  gate::enter(launch);
  return gate::leave(
      launch, charged_graph("cuGraphLaunch", *needs_of(graph), [=] { return real<index>(graph, stream); }));
}

// While some graph of this process allocates.
template <uint32_t index, bool per_thread>
[[gnu::cold, gnu::noinline]] CUresult launch_one_of_graphs(CUgraphExec graph, CUstream stream) noexcept {
  if (needs_of(graph) != nullptr) return launch_allocating<index, per_thread>(graph, stream);
  return launch<index, Graph<per_thread>>(graph, stream);
}

template <uint32_t index, bool per_thread>
[[gnu::always_inline]] inline CUresult launch_graph(CUgraphExec graph, CUstream stream) {
  if (allocating_graphs.load(std::memory_order_relaxed) != 0) [[unlikely]]
    return launch_one_of_graphs<index, per_thread>(graph, stream);
  return launch<index, Graph<per_thread>>(graph, stream);
}

}  // namespace

// The fast path of these four is in launch_on_stack.S.
#define KERNEL_PARAMETERS                                                                                    \
  CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX, \
      unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream
#define KERNEL_ARGUMENTS \
  f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream

extern "C" {
#pragma GCC visibility push(hidden)
CUresult slow_cuLaunchKernel(KERNEL_PARAMETERS, void** kernelParams, void** extra) noexcept {
  return pass_gate<fn::cuLaunchKernel, Kernel<false>>(KERNEL_ARGUMENTS, kernelParams, extra);
}
CUresult slow_cuLaunchKernel_ptsz(KERNEL_PARAMETERS, void** kernelParams, void** extra) noexcept {
  return pass_gate<fn::cuLaunchKernel_ptsz, Kernel<true>>(KERNEL_ARGUMENTS, kernelParams, extra);
}
CUresult slow_cuLaunchCooperativeKernel(KERNEL_PARAMETERS, void** kernelParams) noexcept {
  return pass_gate<fn::cuLaunchCooperativeKernel, Kernel<false>>(KERNEL_ARGUMENTS, kernelParams);
}
CUresult slow_cuLaunchCooperativeKernel_ptsz(KERNEL_PARAMETERS, void** kernelParams) noexcept {
  return pass_gate<fn::cuLaunchCooperativeKernel_ptsz, Kernel<true>>(KERNEL_ARGUMENTS, kernelParams);
}
#pragma GCC visibility pop
}

#undef KERNEL_PARAMETERS
#undef KERNEL_ARGUMENTS

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                          void** extra) noexcept {
  return launch<fn::cuLaunchKernelEx, KernelEx<false>>(config, f, kernelParams, extra);
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                               void** extra) noexcept {
  return launch<fn::cuLaunchKernelEx_ptsz, KernelEx<true>>(config, f, kernelParams, extra);
}
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launchParamsList, unsigned int numDevices,
                                              unsigned int flags) noexcept {
  return launch<fn::cuLaunchCooperativeKernelMultiDevice, MultiDevice>(launchParamsList, numDevices, flags);
}

CUresult cuLaunch(CUfunction f) noexcept { return launch<fn::cuLaunch, Grid>(f); }
CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) noexcept {
  return launch<fn::cuLaunchGrid, Grid>(f, grid_width, grid_height);
}
CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) noexcept {
  return launch<fn::cuLaunchGridAsync, Grid>(f, grid_width, grid_height, hStream);
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) noexcept {
  return launch_graph<fn::cuGraphLaunch, false>(hGraphExec, hStream);
}
CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) noexcept {
  return launch_graph<fn::cuGraphLaunch_ptsz, true>(hGraphExec, hStream);
}

// The oldest variants count in 32 bits.
#define SETS(width, Value)                                                                                  \
  CUresult cuMemsetD##width(CUdeviceptr_v1 dst, Value value, unsigned int N) noexcept {                     \
    return launch<fn::cuMemsetD##width, Set<false, Value>>(dst, value, N);                                  \
  }                                                                                                         \
  CUresult cuMemsetD##width##_v2(CUdeviceptr dst, Value value, size_t N) noexcept {                         \
    return launch<fn::cuMemsetD##width##_v2, Set<false, Value>>(dst, value, N);                             \
  }                                                                                                         \
  CUresult cuMemsetD##width##_v2_ptds(CUdeviceptr dst, Value value, size_t N) noexcept {                    \
    return launch<fn::cuMemsetD##width##_v2_ptds, Set<true, Value>>(dst, value, N);                         \
  }                                                                                                         \
  CUresult cuMemsetD##width##Async(CUdeviceptr dst, Value value, size_t N, CUstream stream) noexcept {      \
    return launch<fn::cuMemsetD##width##Async, Set<false, Value>>(dst, value, N, stream);                   \
  }                                                                                                         \
  CUresult cuMemsetD##width##Async_ptsz(CUdeviceptr dst, Value value, size_t N, CUstream stream) noexcept { \
    return launch<fn::cuMemsetD##width##Async_ptsz, Set<true, Value>>(dst, value, N, stream);               \
  }                                                                                                         \
  CUresult cuMemsetD2D##width(CUdeviceptr_v1 dst, unsigned int pitch, Value value, unsigned int Width,      \
                              unsigned int Height) noexcept {                                               \
    return launch<fn::cuMemsetD2D##width, Set2D<false, Value>>(dst, pitch, value, Width, Height);           \
  }                                                                                                         \
  CUresult cuMemsetD2D##width##_v2(CUdeviceptr dst, size_t pitch, Value value, size_t Width,                \
                                   size_t Height) noexcept {                                                \
    return launch<fn::cuMemsetD2D##width##_v2, Set2D<false, Value>>(dst, pitch, value, Width, Height);      \
  }                                                                                                         \
  CUresult cuMemsetD2D##width##_v2_ptds(CUdeviceptr dst, size_t pitch, Value value, size_t Width,           \
                                        size_t Height) noexcept {                                           \
    return launch<fn::cuMemsetD2D##width##_v2_ptds, Set2D<true, Value>>(dst, pitch, value, Width, Height);  \
  }                                                                                                         \
  CUresult cuMemsetD2D##width##Async(CUdeviceptr dst, size_t pitch, Value value, size_t Width,              \
                                     size_t Height, CUstream stream) noexcept {                             \
    return launch<fn::cuMemsetD2D##width##Async, Set2D<false, Value>>(dst, pitch, value, Width, Height,     \
                                                                      stream);                              \
  }                                                                                                         \
  CUresult cuMemsetD2D##width##Async_ptsz(CUdeviceptr dst, size_t pitch, Value value, size_t Width,         \
                                          size_t Height, CUstream stream) noexcept {                        \
    return launch<fn::cuMemsetD2D##width##Async_ptsz, Set2D<true, Value>>(dst, pitch, value, Width, Height, \
                                                                          stream);                          \
  }

SETS(8, unsigned char)
SETS(16, unsigned short)
SETS(32, unsigned int)

#undef SETS

}  // namespace hook
