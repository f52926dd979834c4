// SPDX-License-Identifier: Apache-2.0
//
// Modules, libraries and kernels. A library and its module are one object, and so are a CUkernel and its
// CUfunction: cudart passes one where the other is meant. The handles are told apart by type only.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sim/driver/api.h"
#include "sim/driver/context.h"
#include "sim/driver/image.h"

struct CUfunc_st {
  static constexpr uint32_t kMagic = 0x66756e31;
  uint32_t magic = kMagic;
  CUmod_st* module;
  std::string name;
  uint64_t listed_ns = 0;  // from SIMGPU_KERNELS; 0: not listed
  bool takes_ns = false;   // its first parameter is its duration
  int registers = 32;
  int static_shared_bytes = 0;
  int max_dynamic_shared_bytes = 48 << 10;
  int carveout = -1;
  bool non_portable_cluster = false;
  bool parameters_known = false;
  std::vector<sim::KernelParameter> parameters;
};

struct CUmod_st {
  static constexpr uint32_t kMagic = 0x6d6f6431;
  uint32_t magic = kMagic;
  CUctx_st* context = nullptr;  // a module's; a library has none
  sim::Image image;

  std::mutex mutex;  // guards what follows
  std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
  std::map<std::pair<CUctx_st*, std::string>, CUdeviceptr> globals;
};

namespace sim {

inline CUfunc_st* function_of(CUkernel kernel) { return reinterpret_cast<CUfunc_st*>(kernel); }
inline CUkernel kernel_of(CUfunc_st* function) { return reinterpret_cast<CUkernel>(function); }
inline CUmod_st* module_of(CUlibrary library) { return reinterpret_cast<CUmod_st*>(library); }

inline bool is_function(const CUfunc_st* function) {
  return function != nullptr && function->magic == CUfunc_st::kMagic;
}
inline bool is_module(const CUmod_st* module) {
  return module != nullptr && module->magic == CUmod_st::kMagic;
}

// All functions of a module, made as needed. Empty where the image is compressed: its names are not known.
std::vector<CUfunc_st*> functions_of(CUmod_st* module);

// The context's memory goes; __device__ variables that lie in it must not be found any more.
void forget_module_memory(CUctx_st* context);

}  // namespace sim
