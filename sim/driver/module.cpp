// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/module.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "sim/driver/launch.h"
#include "sim/driver/memory.h"

namespace sim {
namespace {

// A variable of a compressed image: nobody here knows its size, but cudart does. Enough address space for
// any; it takes no memory before it is written.
constexpr size_t kUnknownVariableBytes = 64u << 20;

CUfunc_st* make_function(CUmod_st* module, const std::string& name) {
  auto function = std::make_unique<CUfunc_st>();
  function->module = module;
  function->name = name;
  function->listed_ns = listed_duration_ns(name.c_str());
  function->takes_ns = name.find("_for_ns") != std::string::npos;
  const auto known = module->image.kernels.find(name);
  if (known != module->image.kernels.end()) {
    function->registers = known->second.registers;
    function->static_shared_bytes = known->second.shared_bytes;
    function->parameters = known->second.parameters;
    function->parameters_known = known->second.parameters_known;
  }
  return (module->functions[name] = std::move(function)).get();
}

CUresult get_function(CUfunc_st** function, CUmod_st* module, const char* name) {
  if (function == nullptr || name == nullptr || name[0] == '\0') return CUDA_ERROR_INVALID_VALUE;
  if (!is_module(module)) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(module->mutex);
  const auto found = module->functions.find(name);
  if (found != module->functions.end()) {
    *function = found->second.get();
    return CUDA_SUCCESS;
  }
  if (module->image.kernels_known && module->image.kernels.count(name) == 0) return CUDA_ERROR_NOT_FOUND;
  *function = make_function(module, name);
  return CUDA_SUCCESS;
}

CUresult get_global(CUdeviceptr* address, size_t* bytes, CUmod_st* module, const char* name,
                    CUctx_st* context) {
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (!is_module(module)) return CUDA_ERROR_INVALID_HANDLE;
  const auto known = module->image.variables.find(name);
  if (module->image.variables_known && known == module->image.variables.end()) return CUDA_ERROR_NOT_FOUND;
  const size_t size =
      known != module->image.variables.end() ? std::max<size_t>(known->second, 1) : kUnknownVariableBytes;
  std::lock_guard lock(module->mutex);
  CUdeviceptr& variable = module->globals[{context->owner, name}];
  if (variable == 0) {
    const CUresult error = known != module->image.variables.end()
                               ? allocate_device_memory(context, size, Allocation::Kind::kModule, &variable)
                               : reserve_module_memory(context, size, &variable);
    if (error != CUDA_SUCCESS) return error;
  }
  if (address != nullptr) *address = variable;
  if (bytes != nullptr) *bytes = size;
  return CUDA_SUCCESS;
}

struct Modules {
  std::mutex mutex;
  std::vector<CUmod_st*> loaded;
};

Modules& modules() {
  static Modules& instance = *new Modules;
  return instance;
}

CUresult load(CUmod_st** module, const void* data, CUctx_st* context) {
  auto loaded = std::make_unique<CUmod_st>();
  loaded->context = context != nullptr ? context->owner : nullptr;  // a library is in every context
  if (!read_image(data, &loaded->image)) return CUDA_ERROR_INVALID_IMAGE;
  std::lock_guard lock(modules().mutex);
  modules().loaded.push_back(loaded.get());
  *module = loaded.release();
  return CUDA_SUCCESS;
}

CUresult load_file(CUmod_st** module, const char* path, CUctx_st* context) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  content.append(64, '\0');  // so that looking at the beginning of a short file stays inside
  return load(module, content.data(), context);
}

CUresult unload(CUmod_st* module) {
  if (!is_module(module)) return CUDA_ERROR_INVALID_HANDLE;
  {
    std::lock_guard lock(modules().mutex);
    if (std::erase(modules().loaded, module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  }
  for (const auto& [key, address] : module->globals) {
    if (const auto allocation = forget(address)) release_allocation(*allocation);
  }
  module->magic = 0;
  for (const auto& [name, function] : module->functions) function->magic = 0;
  delete module;
  return CUDA_SUCCESS;
}

CUresult function_attribute(int* value, CUfunction_attribute attribute, CUfunc_st* function,
                            CUdevice device) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
  const GpuModel& model = device_model(device);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = std::min(1024, model.registers_per_sm / (function->registers * 32) * 32);
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = function->static_shared_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = function->registers;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = model.cc_major * 10 + model.cc_minor;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = function->max_dynamic_shared_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = function->carveout;
      break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *value = function->non_portable_cluster;
      break;
    default:
      if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult set_function_attribute(CUfunction_attribute attribute, int value, CUfunc_st* function,
                                CUdevice device) {
  if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 ||
          value + function->static_shared_bytes > device_model(device).shared_per_block_optin_bytes) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      function->max_dynamic_shared_bytes = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      function->carveout = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      function->non_portable_cluster = value != 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult parameter_info(CUfunc_st* function, size_t index, size_t* offset, size_t* size) {
  if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
  if (offset == nullptr || !function->parameters_known || index >= function->parameters.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *offset = function->parameters[index].offset;
  if (size != nullptr) *size = function->parameters[index].size;
  return CUDA_SUCCESS;
}

}  // namespace

std::vector<CUfunc_st*> functions_of(CUmod_st* module) {
  std::lock_guard lock(module->mutex);
  std::vector<CUfunc_st*> result;
  for (const auto& [name, kernel] : module->image.kernels) {
    const auto found = module->functions.find(name);
    result.push_back(found != module->functions.end() ? found->second.get() : make_function(module, name));
  }
  return result;
}

void forget_module_memory(CUctx_st* context) {
  std::lock_guard lock(modules().mutex);
  for (CUmod_st* module : modules().loaded) {
    std::lock_guard module_lock(module->mutex);
    std::erase_if(module->globals, [&](const auto& global) { return global.first.first == context; });
  }
}

}  // namespace sim

SIM_API(cuModuleLoadData)(CUmodule* module, const void* image) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::load(module, image, context);
}
SIM_API(cuModuleLoadDataEx)(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return sim_cuModuleLoadData(module, image);
}
SIM_API(cuModuleLoadFatBinary)(CUmodule* module, const void* image) {
  return sim_cuModuleLoadData(module, image);
}

SIM_API(cuModuleLoad)(CUmodule* module, const char* path) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (module == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::load_file(module, path, context);
}

SIM_API(cuModuleUnload)(CUmodule module) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  return sim::unload(module);
}

SIM_API(cuModuleGetFunction)(CUfunction* function, CUmodule module, const char* name) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  return sim::get_function(function, module, name);
}

SIM_API(cuModuleGetGlobal_v2)(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  return sim::get_global(address, bytes, module, name, context);
}

SIM_API(cuModuleGetFunctionCount)(unsigned* count, CUmodule module) {
  if (!sim::is_module(module)) return CUDA_ERROR_INVALID_HANDLE;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(sim::functions_of(module).size());
  return CUDA_SUCCESS;
}

SIM_API(cuModuleEnumerateFunctions)(CUfunction* functions, unsigned count, CUmodule module) {
  if (!sim::is_module(module)) return CUDA_ERROR_INVALID_HANDLE;
  if (functions == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<CUfunc_st*> all = sim::functions_of(module);
  std::copy_n(all.begin(), std::min<size_t>(count, all.size()), functions);
  return CUDA_SUCCESS;
}

SIM_API(cuModuleGetLoadingMode)(CUmoduleLoadingMode* mode) {
  if (CUresult error = sim::ready()) return error;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const char* wanted = getenv("CUDA_MODULE_LOADING");
  *mode =
      wanted != nullptr && strcmp(wanted, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

SIM_API(cuLibraryLoadData)
(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  if (CUresult error = sim::ready()) return error;
  if (library == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUmod_st* module;
  if (CUresult error = sim::load(&module, code, nullptr)) return error;
  *library = reinterpret_cast<CUlibrary>(module);
  return CUDA_SUCCESS;
}

SIM_API(cuLibraryLoadFromFile)
(CUlibrary* library, const char* path, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  if (CUresult error = sim::ready()) return error;
  if (library == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUmod_st* module;
  if (CUresult error = sim::load_file(&module, path, nullptr)) return error;
  *library = reinterpret_cast<CUlibrary>(module);
  return CUDA_SUCCESS;
}

SIM_API(cuLibraryUnload)(CUlibrary library) {
  if (CUresult error = sim::ready()) return error;
  return sim::unload(sim::module_of(library));
}

SIM_API(cuLibraryGetKernel)(CUkernel* kernel, CUlibrary library, const char* name) {
  if (kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUfunc_st* function;
  if (CUresult error = sim::get_function(&function, sim::module_of(library), name)) return error;
  *kernel = sim::kernel_of(function);
  return CUDA_SUCCESS;
}

SIM_API(cuLibraryGetModule)(CUmodule* module, CUlibrary library) {
  if (!sim::is_module(sim::module_of(library))) return CUDA_ERROR_INVALID_HANDLE;
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *module = sim::module_of(library);
  return CUDA_SUCCESS;
}

SIM_API(cuLibraryGetGlobal)(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  return sim::get_global(address, bytes, sim::module_of(library), name, context);
}

SIM_API(cuLibraryGetManaged)(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return sim_cuLibraryGetGlobal(address, bytes, library, name);
}

SIM_API(cuLibraryGetKernelCount)(unsigned* count, CUlibrary library) {
  return sim_cuModuleGetFunctionCount(count, sim::module_of(library));
}

SIM_API(cuLibraryEnumerateKernels)(CUkernel* kernels, unsigned count, CUlibrary library) {
  return sim_cuModuleEnumerateFunctions(reinterpret_cast<CUfunction*>(kernels), count,
                                        sim::module_of(library));
}

SIM_API(cuKernelGetFunction)(CUfunction* function, CUkernel kernel) {
  if (!sim::is_function(sim::function_of(kernel))) return CUDA_ERROR_INVALID_HANDLE;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = sim::function_of(kernel);
  return CUDA_SUCCESS;
}

SIM_API(cuKernelGetLibrary)(CUlibrary* library, CUkernel kernel) {
  if (!sim::is_function(sim::function_of(kernel))) return CUDA_ERROR_INVALID_HANDLE;
  if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *library = reinterpret_cast<CUlibrary>(sim::function_of(kernel)->module);
  return CUDA_SUCCESS;
}

SIM_API(cuKernelGetAttribute)(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  return sim::function_attribute(value, attribute, sim::function_of(kernel), device);
}

SIM_API(cuKernelSetAttribute)(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  return sim::set_function_attribute(attribute, value, sim::function_of(kernel), device);
}

SIM_API(cuKernelSetCacheConfig)(CUkernel kernel, CUfunc_cache, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  return sim::is_function(sim::function_of(kernel)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API(cuKernelGetName)(const char** name, CUkernel kernel) {
  if (!sim::is_function(sim::function_of(kernel))) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = sim::function_of(kernel)->name.c_str();
  return CUDA_SUCCESS;
}

SIM_API(cuKernelGetParamInfo)(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  return sim::parameter_info(sim::function_of(kernel), index, offset, size);
}

SIM_API(cuKernelGetParamCount)(CUkernel kernel, size_t* count) {
  if (!sim::is_function(sim::function_of(kernel))) return CUDA_ERROR_INVALID_HANDLE;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = sim::function_of(kernel)->parameters.size();
  return CUDA_SUCCESS;
}

SIM_API(cuFuncGetAttribute)(int* value, CUfunction_attribute attribute, CUfunction function) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  return sim::function_attribute(value, attribute, function, context->device);
}

SIM_API(cuFuncSetAttribute)(CUfunction function, CUfunction_attribute attribute, int value) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  return sim::set_function_attribute(attribute, value, function, context->device);
}

SIM_API(cuFuncSetCacheConfig)(CUfunction function, CUfunc_cache) {
  return sim::is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API(cuFuncSetSharedMemConfig)(CUfunction function, CUsharedconfig) {
  return sim::is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API(cuFuncGetModule)(CUmodule* module, CUfunction function) {
  if (!sim::is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *module = function->module;
  return CUDA_SUCCESS;
}

SIM_API(cuFuncGetName)(const char** name, CUfunction function) {
  return sim_cuKernelGetName(name, sim::kernel_of(function));
}

SIM_API(cuFuncGetParamInfo)(CUfunction function, size_t index, size_t* offset, size_t* size) {
  return sim::parameter_info(function, index, offset, size);
}

SIM_API(cuFuncGetParamCount)(CUfunction function, size_t* count) {
  return sim_cuKernelGetParamCount(sim::kernel_of(function), count);
}

SIM_API(cuFuncIsLoaded)(CUfunctionLoadingState* state, CUfunction function) {
  if (!sim::is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

SIM_API(cuFuncLoad)(CUfunction function) {
  return sim::is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
