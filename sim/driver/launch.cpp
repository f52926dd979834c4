// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/launch.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sim/driver/capture.h"
#include "sim/driver/event.h"
#include "sim/driver/graph.h"

namespace sim {
namespace {

struct ListedKernel {
  std::string name;
  uint64_t duration_ns;
};

std::vector<ListedKernel> read_list() {
  std::vector<ListedKernel> result;
  const char* list = getenv("SIMGPU_KERNELS");
  if (list == nullptr) return result;
  const std::string text = list;
  for (size_t start = 0; start < text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string entry = text.substr(start, comma - start);
    const size_t equals = entry.rfind('=');
    if (equals != std::string::npos && equals > 0) {
      const double microseconds = strtod(entry.c_str() + equals + 1, nullptr);
      if (microseconds > 0)
        result.push_back({entry.substr(0, equals), static_cast<uint64_t>(microseconds * 1000)});
    }
    start = comma + 1;
  }
  return result;
}

// The first parameter, however the caller passed it. False: there is none.
bool first_parameter(void** parameters, void** extra, uint64_t* value) {
  if (parameters != nullptr) {
    if (parameters[0] == nullptr) return false;
    memcpy(value, parameters[0], sizeof *value);
    return true;
  }
  if (extra == nullptr) return false;
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[i + 1];
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const size_t*>(extra[i + 1]);
  }
  if (buffer == nullptr || bytes < sizeof *value) return false;
  memcpy(value, buffer, sizeof *value);
  return true;
}

uint64_t duration_ns(const CUfunc_st& function, const CUDA_KERNEL_NODE_PARAMS_v3& params) {
  if (function.listed_ns != 0) return function.listed_ns;
  uint64_t own = 0;
  if (function.takes_ns && first_parameter(params.kernelParams, params.extra, &own)) return own;
  return Node::get().settings().default_kernel_ns;
}

CUresult launch(const CUDA_KERNEL_NODE_PARAMS_v3& params, CUstream handle, bool cooperative) {
  CUstream_st* stream;
  if (CUresult error = find_stream(handle, &stream)) return error;
  RunKernel kernel;
  if (CUresult error = prepare_kernel(params, stream->context, cooperative, &kernel)) return error;
  if (!stream->capturing) return perform(stream, kernel);
  if (CUresult error = capture_action(stream, kernel)) return error;
  std::lock_guard lock(stream->mutex);
  if (!stream->frontier.empty()) {
    auto with_function = params;
    with_function.func = kernel.params.func;
    keep_arguments(stream->frontier.front(), with_function);
  }
  return CUDA_SUCCESS;
}

CUDA_KERNEL_NODE_PARAMS_v3 shape(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, unsigned shared_bytes, void** parameters,
                                 void** extra) {
  return {function, gx, gy, gz, bx, by, bz, shared_bytes, parameters, extra, nullptr, nullptr};
}

}  // namespace

uint64_t listed_duration_ns(const char* name) {
  static const std::vector<ListedKernel>& listed = *new std::vector<ListedKernel>(read_list());
  for (const ListedKernel& kernel : listed) {
    if (strstr(name, kernel.name.c_str()) != nullptr) return kernel.duration_ns;
  }
  return 0;
}

int blocks_per_sm(const CUfunc_st& function, int device, int block_threads, size_t dynamic_shared_bytes) {
  const GpuModel& model = device_model(device);
  if (block_threads <= 0 || block_threads > 1024) return 0;
  const int warps = (block_threads + 31) / 32;
  int blocks = std::min(model.blocks_per_sm, model.threads_per_sm / (warps * 32));
  blocks = std::min(blocks, model.registers_per_sm / (function.registers * warps * 32));
  // Every block takes a kilobyte for the system beside its own.
  const size_t shared_bytes = dynamic_shared_bytes + static_cast<size_t>(function.static_shared_bytes) + 1024;
  return std::min<int>(blocks,
                       static_cast<int>(static_cast<size_t>(model.shared_per_sm_bytes) / shared_bytes));
}

CUresult prepare_kernel(const CUDA_KERNEL_NODE_PARAMS_v3& params, CUctx_st* context, bool cooperative,
                        RunKernel* kernel) {
  CUfunc_st* function = params.func != nullptr ? params.func : function_of(params.kern);
  if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t threads = uint64_t{params.blockDimX} * params.blockDimY * params.blockDimZ;
  const uint64_t blocks = uint64_t{params.gridDimX} * params.gridDimY * params.gridDimZ;
  if (threads == 0 || blocks == 0 || threads > 1024 || params.blockDimZ > 64 ||
      params.gridDimX > 2147483647u || params.gridDimY > 65535 || params.gridDimZ > 65535) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const GpuModel& model = device_model(context->device);
  const auto device_sms = static_cast<uint64_t>(model.sm_count);
  const uint64_t own_sms = context->partition.number != 0 ? context->partition.sms : device_sms;
  if (params.sharedMemBytes > static_cast<unsigned>(model.shared_per_block_optin_bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int per_sm =
      blocks_per_sm(*function, context->device, static_cast<int>(threads), params.sharedMemBytes);
  if (per_sm == 0) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  const uint64_t resident = static_cast<uint64_t>(per_sm) * own_sms;
  if (cooperative && blocks > resident) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  kernel->params = params;
  kernel->params.func = function;
  kernel->params.kernelParams = nullptr;
  kernel->params.extra = nullptr;
  const uint64_t sms = (blocks + static_cast<uint64_t>(per_sm) - 1) / static_cast<uint64_t>(per_sm);
  kernel->sms = static_cast<uint32_t>(std::min(sms, own_sms));
  kernel->partition = context->partition;
  // What is said of a kernel is its time on the whole device; on fewer SMs it takes more rounds.
  const auto rounds = [sms](uint64_t of_sms) { return (sms + of_sms - 1) / of_sms; };
  kernel->duration_ns = duration_ns(*function, params) * rounds(own_sms) / rounds(device_sms);
  return CUDA_SUCCESS;
}

}  // namespace sim

SIM_API(cuLaunchKernel)
(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
 unsigned shared, CUstream stream, void** parameters, void** extra) {
  return sim::launch(sim::shape(function, gx, gy, gz, bx, by, bz, shared, parameters, extra), stream, false);
}

SIM_API(cuLaunchCooperativeKernel)
(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
 unsigned shared, CUstream stream, void** parameters) {
  return sim::launch(sim::shape(function, gx, gy, gz, bx, by, bz, shared, parameters, nullptr), stream, true);
}

SIM_API(cuLaunchKernelEx)
(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool cooperative = false;
  std::vector<CUevent> events;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = attribute.value.cooperative != 0;
    // Events that a kernel triggers on its way are triggered at its end.
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
      events.push_back(attribute.value.programmaticEvent.event);
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
      events.push_back(attribute.value.launchCompletionEvent.event);
    }
  }
  const CUDA_KERNEL_NODE_PARAMS_v3 params =
      sim::shape(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                 config->blockDimY, config->blockDimZ, config->sharedMemBytes, parameters, extra);
  if (CUresult error = sim::launch(params, config->hStream, cooperative)) return error;
  for (CUevent event : events) {
    if (CUresult error = sim::record_event(event, config->hStream, 0)) return error;
  }
  return CUDA_SUCCESS;
}

SIM_API(cuLaunchHostFunc)(CUstream handle, CUhostFn function, void* data) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::perform(stream, sim::CallHost{function, data});
}

SIM_API(cuLaunchHostFunc_v2)(CUstream stream, CUhostFn function, void* data, unsigned) {
  return sim_cuLaunchHostFunc(stream, function, data);
}

SIM_API(cuStreamAddCallback)(CUstream handle, CUstreamCallback callback, void* data, unsigned flags) {
  struct Call {
    CUstream stream;
    CUstreamCallback callback;
    void* data;
  };
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = sim::refuse_capturing(stream)) return error;
  const CUhostFn once = [](void* call_data) {
    const std::unique_ptr<Call> call(static_cast<Call*>(call_data));
    call->callback(call->stream, CUDA_SUCCESS, call->data);
  };
  return sim::perform(stream, sim::CallHost{once, new Call{handle, callback, data}});
}
