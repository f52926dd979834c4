// SPDX-License-Identifier: Apache-2.0
//
// What the driver takes behind calls that ask for no memory: buffers of a context whose sizes the program
// sets, and the code and globals of modules.
#include "interpose/gate.h"
#include "interpose/quota.h"
#include "interpose/reservoirs.h"

namespace hook {
namespace {

int attribute_of(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return real<fn::cuDeviceGetAttribute>(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

// What a context takes for a limit of that value. 0: nothing, or unknown.
uint64_t bytes_behind(CUlimit limit, uint64_t value) {
  uint64_t count = 1;
  if (limit == CU_LIMIT_STACK_SIZE) {
    // Room for every thread that the GPU can have resident.
    CUdevice device;
    if (real<fn::cuCtxGetDevice>(&device) != CUDA_SUCCESS) return 0;
    count = static_cast<uint64_t>(attribute_of(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)) *
            static_cast<uint64_t>(attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR));
  } else if (limit != CU_LIMIT_PRINTF_FIFO_SIZE && limit != CU_LIMIT_MALLOC_HEAP_SIZE) {
    return 0;
  }
  uint64_t bytes;
  if (__builtin_mul_overflow(value, count, &bytes) || bytes > shm::kLedgerBytesMask) return ~uint64_t{0};
  return (bytes + kGranule - 1) & ~(kGranule - 1);
}

// A call that may make the driver take memory, how much only it knows.
template <typename Call>
CUresult measured(const char* function, Call call) {
  SliceGpu gpu;
  const Standing standing = standing_in_context(&gpu);
  if (const CUresult refused = barred(standing); refused != CUDA_SUCCESS) return refused;
  if (standing == Standing::kUnlimited) return call();
  CUresult result;
  {
    InFlight in_flight(gpu);
    if (const CUresult refused = take_unknown(function, in_flight); refused != CUDA_SUCCESS) return refused;
    result = ask_driver(function, in_flight, kGranule, call);
    if (result != CUDA_SUCCESS) give_unknown(in_flight);
    settle_reservoirs(in_flight);
  }
  ask_to_measure(gpu);
  return result;
}

// A call that may give such memory back.
template <typename Call>
CUresult unmeasured(Call call) {
  SliceGpu gpu;
  if (standing_in_context(&gpu) != Standing::kLimited) return call();
  CUresult result;
  {
    const InFlight in_flight(gpu);
    result = call();
    if (result == CUDA_SUCCESS) give_unknown(in_flight);
    settle_reservoirs(in_flight);
  }
  if (result == CUDA_SUCCESS) ask_to_measure(gpu);
  return result;
}

}  // namespace

// A buffer that grows is charged for what it grows by, until it is measured. The driver may make it later, at
// the next launch; what it takes then is overhead.
CUresult cuCtxSetLimit(CUlimit limit, size_t value) noexcept {
  const auto call = [=] { return real<fn::cuCtxSetLimit>(limit, value); };
  SliceGpu gpu;
  const Standing standing = standing_in_context(&gpu);
  if (const CUresult refused = barred(standing); refused != CUDA_SUCCESS) return refused;
  size_t old_value;
  if (standing == Standing::kUnlimited || real<fn::cuCtxGetLimit>(&old_value, limit) != CUDA_SUCCESS)
    return call();
  const uint64_t before = bytes_behind(limit, old_value);
  const uint64_t after = bytes_behind(limit, value);
  if (before == after) return call();
  CUresult result;
  {
    InFlight in_flight(gpu);
    const uint64_t growth = after > before ? after - before : 0;
    if (growth != 0) {
      const CUresult refused = take_overhead("cuCtxSetLimit", in_flight, growth);
      if (refused != CUDA_SUCCESS) return refused;
    }
    result = ask_driver("cuCtxSetLimit", in_flight, growth, call);
    if (result != CUDA_SUCCESS) {
      if (growth != 0) give_overhead(in_flight, growth);
    } else if (growth == 0) {
      give_overhead(in_flight, before - after);
    }
    settle_reservoirs(in_flight);
  }
  ask_to_measure(gpu);
  return result;
}

CUresult cuModuleLoad(CUmodule* module, const char* fname) noexcept {
  return measured("cuModuleLoad", [=] { return real<fn::cuModuleLoad>(module, fname); });
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) noexcept {
  return measured("cuModuleLoadData", [=] { return real<fn::cuModuleLoadData>(module, image); });
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                            CUjit_option* options, void** optionValues) noexcept {
  return measured("cuModuleLoadDataEx", [=] {
    return real<fn::cuModuleLoadDataEx>(module, image, numOptions, options, optionValues);
  });
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) noexcept {
  return measured("cuModuleLoadFatBinary", [=] { return real<fn::cuModuleLoadFatBinary>(module, fatCubin); });
}
// With lazy loading a variable's memory is taken when it is first asked for.
CUresult cuModuleGetGlobal(CUdeviceptr_v1* dptr, unsigned int* bytes, CUmodule hmod,
                           const char* name) noexcept {
  return measured("cuModuleGetGlobal", [=] { return real<fn::cuModuleGetGlobal>(dptr, bytes, hmod, name); });
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) noexcept {
  return measured("cuModuleGetGlobal",
                  [=] { return real<fn::cuModuleGetGlobal_v2>(dptr, bytes, hmod, name); });
}
CUresult cuModuleUnload(CUmodule hmod) noexcept {
  gate::functions_ended();
  return unmeasured([=] { return real<fn::cuModuleUnload>(hmod); });
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption* libraryOptions, void** libraryOptionValues,
                           unsigned int numLibraryOptions) noexcept {
  return measured("cuLibraryLoadData", [=] {
    return real<fn::cuLibraryLoadData>(library, code, jitOptions, jitOptionsValues, numJitOptions,
                                       libraryOptions, libraryOptionValues, numLibraryOptions);
  });
}
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                               void** jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption* libraryOptions, void** libraryOptionValues,
                               unsigned int numLibraryOptions) noexcept {
  return measured("cuLibraryLoadFromFile", [=] {
    return real<fn::cuLibraryLoadFromFile>(library, fileName, jitOptions, jitOptionsValues, numJitOptions,
                                           libraryOptions, libraryOptionValues, numLibraryOptions);
  });
}
CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) noexcept {
  return measured("cuLibraryGetGlobal",
                  [=] { return real<fn::cuLibraryGetGlobal>(dptr, bytes, library, name); });
}
CUresult cuLibraryUnload(CUlibrary library) noexcept {
  gate::functions_ended();
  return unmeasured([=] { return real<fn::cuLibraryUnload>(library); });
}

CUresult cuFuncLoad(CUfunction function) noexcept {
  return measured("cuFuncLoad", [=] { return real<fn::cuFuncLoad>(function); });
}

}  // namespace hook
