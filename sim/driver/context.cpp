// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/context.h"

#include <algorithm>
#include <array>

#include "sim/driver/arena.h"
#include "sim/driver/capture.h"
#include "sim/driver/graph_memory.h"
#include "sim/driver/memory.h"
#include "sim/driver/module.h"
#include "sim/driver/pools.h"
#include "sim/driver/stream.h"

namespace sim {
namespace {

using Limits = std::array<size_t, CU_LIMIT_MAX>;
const Limits& first_limits() {
  static constexpr Limits kFirst = [] {
    Limits limits{};
    limits[CU_LIMIT_STACK_SIZE] = 1024;
    limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 << 20;
    limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    return limits;
  }();
  return kFirst;
}

}  // namespace
}  // namespace sim

CUctx_st::CUctx_st(CUdevice device, bool primary, uint64_t id)
    : device(device), primary(primary), id(id), owner(this), green(nullptr) {
  std::copy(sim::first_limits().begin(), sim::first_limits().end(), limits);
  legacy = new CUstream_st(this, CU_STREAM_DEFAULT, 0, 0);
}

CUctx_st::CUctx_st(CUctx_st* owner, uint64_t id, CUgreenCtx green, sim::Partition partition)
    : device(owner->device), primary(false), id(id), owner(owner), green(green), partition(partition) {
  std::copy(std::begin(owner->limits), std::end(owner->limits), limits);
  api_version = owner->api_version;
  // Its default stream is no other's: a hardware queue as any stream gets it.
  legacy = new CUstream_st(this, CU_STREAM_DEFAULT, 0, sim::choose_channel(owner));
}

namespace sim {
namespace {

// Queues and tables that a green context has beside its primary one. No public figure says how much; a
// sixteenth of a context is more than nothing and less than a context.
constexpr uint64_t kGreenPart = 16;

uint64_t green_bytes() { return Node::get().settings().context_bytes / kGreenPart; }

// The current context of a thread is the top of its stack. Plain data: it must work while the thread's and
// the process' other objects are being destroyed.
constexpr int kStackDepth = 64;
struct ContextStack {
  CUctx_st* contexts[kStackDepth];
  int depth;
};
thread_local constinit ContextStack stack{};

struct Contexts {
  // Creation, activation and end of contexts. Recursive: what a library left to be called at the end of a
  // context may call the driver.
  std::recursive_mutex lifecycle;
  std::mutex mutex;  // guards the list
  std::vector<CUctx_st*> all;
  std::vector<CUctx_st*> primary;
  uint64_t next_id = 1;

  Contexts() {
    for (CUdevice device = 0; device < visible_devices(); ++device) {
      primary.push_back(new CUctx_st(device, true, next_id++));
    }
    all = primary;
  }
};

Contexts& contexts() {
  static Contexts& instance = *new Contexts;
  return instance;
}

// Destroyed ones too: their streams may still have work.
std::vector<CUctx_st*> green_contexts(CUctx_st* owner) {
  Contexts& all = contexts();
  std::lock_guard lock(all.mutex);
  std::vector<CUctx_st*> result;
  for (CUctx_st* context : all.all) {
    if (context != owner && context->owner == owner) result.push_back(context);
  }
  return result;
}

CUctx_st* top() { return stack.depth > 0 ? stack.contexts[stack.depth - 1] : nullptr; }

CUresult push(CUctx_st* context) {
  if (stack.depth == kStackDepth) return CUDA_ERROR_INVALID_VALUE;
  stack.contexts[stack.depth++] = context;
  return CUDA_SUCCESS;
}

CUresult activate(CUctx_st* context) {
  if (CUresult error = device_fault(context->device)) return error;
  const ContextId id = Node::get().create_context(node_device(context->device));
  if (id == kNoContext) return CUDA_ERROR_OUT_OF_MEMORY;
  context->node_context = id;
  context->active = true;
  return CUDA_SUCCESS;
}

void call_storage_destructors(CUctx_st* context) {
  std::map<void*, LocalStorage> storage;
  {
    std::lock_guard lock(context->storage_mutex);
    storage.swap(context->storage);
  }
  for (const auto& [key, entry] : storage) {
    if (entry.destructor != nullptr) entry.destructor(context, key, entry.value);
  }
}

// Ends a green context. Precondition: lifecycle mutex held.
void deactivate_green(CUctx_st* context) {
  if (!context->active.exchange(false)) return;
  call_storage_destructors(context);
  abandon_captures(context);
  give_device_memory(context->device, green_bytes());
}

void deactivate_greens_of(CUctx_st* owner) {
  for (CUctx_st* context : green_contexts(owner)) {
    deactivate_green(context);
    context->node_context = kNoContext;
  }
}

// What a limit's buffer takes; a stack is one of every thread that can be resident.
uint64_t buffer_bytes(const CUctx_st* context, CUlimit limit, uint64_t value) {
  const GpuModel& model = device_model(context->device);
  if (limit == CU_LIMIT_STACK_SIZE) return round_up(value * model.sm_count * model.threads_per_sm, kGranule);
  const bool has_buffer = limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE;
  return has_buffer ? round_up(value, kGranule) : 0;
}

// Buffers of the first size are part of what every context takes; one that was raised is never made smaller
// than that.
CUresult set_limit(CUctx_st* context, CUlimit limit, size_t value) {
  std::lock_guard lock(context->limits_mutex);
  const auto beyond_first = [&](size_t size) {
    const uint64_t first = buffer_bytes(context, limit, first_limits()[limit]);
    return std::max(buffer_bytes(context, limit, size), first) - first;
  };
  const uint64_t before = beyond_first(context->limits[limit]);
  const uint64_t after = beyond_first(value);
  if (after > before && !take_device_memory(context->device, after - before)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (after < before) give_device_memory(context->device, before - after);
  context->limits_bytes += after - before;
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}

void reset_limits(CUctx_st* context) {
  std::lock_guard lock(context->limits_mutex);
  give_device_memory(context->device, context->limits_bytes);
  context->limits_bytes = 0;
  std::copy(first_limits().begin(), first_limits().end(), context->limits);
}

// Ends everything that a context owns. The object stays. Precondition: lifecycle mutex held.
void deactivate(CUctx_st* context) {
  if (!context->active.exchange(false)) return;
  deactivate_greens_of(context);
  call_storage_destructors(context);
  abandon_captures(context);
  destroy_streams(context);
  forget_module_memory(context);
  release_memory_of(context);
  reset_limits(context);
  Node::get().destroy_context(context->node_context);
  context->node_context = kNoContext;
  if (active_contexts(context->device).empty()) {
    release_pools(context->device);
    release_all_graph_memory(context->device);
  }
}

CUresult create(CUcontext* result, unsigned flags, CUdevice device) {
  if (CUresult error = check_device(device)) return error;
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Contexts& all = contexts();
  std::lock_guard lifecycle(all.lifecycle);
  CUctx_st* context;
  {
    std::lock_guard lock(all.mutex);
    context = new CUctx_st(device, false, all.next_id++);
  }
  context->flags = flags;
  if (CUresult error = activate(context)) {
    delete context->legacy;
    delete context;
    return error;
  }
  {
    std::lock_guard lock(all.mutex);
    all.all.push_back(context);
  }
  *result = context;
  return push(context);
}

CUresult retain_primary(CUdevice device, CUctx_st** result) {
  std::lock_guard lifecycle(contexts().lifecycle);
  CUctx_st* context = contexts().primary[device];
  if (!context->active) {
    if (CUresult error = activate(context)) return error;
  }
  ++context->retained;
  *result = context;
  return CUDA_SUCCESS;
}

CUresult release_primary(CUdevice device, bool reset) {
  if (CUresult error = check_device(device)) return error;
  std::lock_guard lifecycle(contexts().lifecycle);
  CUctx_st* context = contexts().primary[device];
  if (!reset && context->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (reset) {
    // The holders' references stay; the next retain or use makes it anew.
    deactivate(context);
  } else if (--context->retained == 0) {
    deactivate(context);
  }
  return CUDA_SUCCESS;
}

}  // namespace

bool is_context(CUcontext handle) {
  if (handle == nullptr) return false;
  Contexts& all = contexts();
  std::lock_guard lock(all.mutex);
  return std::find(all.all.begin(), all.all.end(), handle) != all.all.end();
}

CUctx_st* current_context_or_null() { return ready() == CUDA_SUCCESS ? top() : nullptr; }

CUresult current_context(CUctx_st** context) {
  if (CUresult error = ready()) return error;
  *context = top();
  if (*context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!(*context)->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return device_fault((*context)->device);
}

CUresult context_of(CUcontext handle, CUctx_st** context) {
  if (handle == nullptr) return current_context(context);
  if (CUresult error = ready()) return error;
  if (handle != top() && !is_context(handle)) return CUDA_ERROR_INVALID_CONTEXT;
  *context = handle;
  return handle->active ? device_fault(handle->device) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult create_green_context(CUdevice device, CUgreenCtx green, Partition partition, CUctx_st** result) {
  std::lock_guard lifecycle(contexts().lifecycle);
  CUctx_st* primary;
  if (CUresult error = retain_primary(device, &primary)) return error;
  if (!take_device_memory(device, green_bytes())) {
    release_primary(device, false);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Contexts& all = contexts();
  std::lock_guard lock(all.mutex);
  auto* context = new CUctx_st(primary, all.next_id++, green, partition);
  context->node_context = primary->node_context.load();
  context->active = true;
  all.all.push_back(context);
  *result = context;
  return CUDA_SUCCESS;
}

void destroy_green_context(CUctx_st* context) {
  std::lock_guard lifecycle(contexts().lifecycle);
  deactivate_green(context);
  release_primary(context->device, false);
}

CUctx_st* primary_context(CUdevice device) { return contexts().primary[device]; }

std::vector<CUctx_st*> active_contexts(CUdevice device) {
  Contexts& all = contexts();
  std::lock_guard lock(all.mutex);
  std::vector<CUctx_st*> result;
  for (CUctx_st* context : all.all) {
    if (context->device == device && context->active) result.push_back(context);
  }
  return result;
}

}  // namespace sim

SIM_API(cuDevicePrimaryCtxRetain)(CUcontext* result, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::retain_primary(device, result);
}

SIM_API(cuDevicePrimaryCtxRelease)(CUdevice device) { return sim::release_primary(device, false); }
SIM_API(cuDevicePrimaryCtxRelease_v2)(CUdevice device) { return sim::release_primary(device, false); }
SIM_API(cuDevicePrimaryCtxReset)(CUdevice device) { return sim::release_primary(device, true); }
SIM_API(cuDevicePrimaryCtxReset_v2)(CUdevice device) { return sim::release_primary(device, true); }

SIM_API(cuDevicePrimaryCtxSetFlags_v2)(CUdevice device, unsigned flags) {
  if (CUresult error = sim::check_device(device)) return error;
  sim::primary_context(device)->flags = flags;
  return CUDA_SUCCESS;
}
SIM_API(cuDevicePrimaryCtxSetFlags)(CUdevice device, unsigned flags) {
  return sim_cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

SIM_API(cuDevicePrimaryCtxGetState)(CUdevice device, unsigned* flags, int* active) {
  if (CUresult error = sim::check_device(device)) return error;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = sim::primary_context(device)->flags;
  *active = sim::primary_context(device)->active;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxCreate)(CUcontext* context, unsigned flags, CUdevice device) {
  return sim::create(context, flags, device);
}
SIM_API(cuCtxCreate_v2)(CUcontext* context, unsigned flags, CUdevice device) {
  return sim::create(context, flags, device);
}
SIM_API(cuCtxCreate_v3)
(CUcontext* context, CUexecAffinityParam*, int count, unsigned flags, CUdevice device) {
  if (count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;  // needs MPS
  return sim::create(context, flags, device);
}
SIM_API(cuCtxCreate_v4)(CUcontext* context, CUctxCreateParams* params, unsigned flags, CUdevice device) {
  if (params != nullptr && params->numExecAffinityParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (params != nullptr && params->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return sim::create(context, flags, device);
}

SIM_API(cuCtxDestroy_v2)(CUcontext context) {
  if (CUresult error = sim::ready()) return error;
  if (!sim::is_context(context) || context->primary || context->green != nullptr)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  std::lock_guard lifecycle(sim::contexts().lifecycle);
  sim::deactivate(context);
  if (sim::top() == context) --sim::stack.depth;
  return CUDA_SUCCESS;
}
SIM_API(cuCtxDestroy)(CUcontext context) { return sim_cuCtxDestroy_v2(context); }
SIM_API(cuCtxDetach)(CUcontext context) { return sim_cuCtxDestroy_v2(context); }

SIM_API(cuCtxPushCurrent_v2)(CUcontext context) {
  if (CUresult error = sim::ready()) return error;
  if (!sim::is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  return sim::push(context);
}
SIM_API(cuCtxPushCurrent)(CUcontext context) { return sim_cuCtxPushCurrent_v2(context); }

SIM_API(cuCtxPopCurrent_v2)(CUcontext* context) {
  if (CUresult error = sim::ready()) return error;
  if (sim::stack.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = sim::top();
  --sim::stack.depth;
  return CUDA_SUCCESS;
}
SIM_API(cuCtxPopCurrent)(CUcontext* context) { return sim_cuCtxPopCurrent_v2(context); }

SIM_API(cuCtxSetCurrent)(CUcontext context) {
  if (CUresult error = sim::ready()) return error;
  if (context == nullptr) {
    if (sim::stack.depth > 0) --sim::stack.depth;
    return CUDA_SUCCESS;
  }
  if (context == sim::top()) return CUDA_SUCCESS;
  if (!sim::is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (sim::stack.depth == 0) return sim::push(context);
  sim::stack.contexts[sim::stack.depth - 1] = context;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxGetCurrent)(CUcontext* context) {
  if (CUresult error = sim::ready()) return error;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = sim::top();
  return CUDA_SUCCESS;
}

SIM_API(cuCtxGetDevice)(CUdevice* device) {
  if (CUresult error = sim::ready()) return error;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (sim::top() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = sim::top()->device;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxGetDevice_v2)(CUdevice* device, CUcontext context) {
  if (context == nullptr) return sim_cuCtxGetDevice(device);
  if (CUresult error = sim::ready()) return error;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!sim::is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxGetFlags)(unsigned* flags) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxSetFlags)(unsigned flags) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  context->flags = flags;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxGetId)(CUcontext handle, unsigned long long* id) {
  CUctx_st* context;
  if (CUresult error = sim::context_of(handle, &context)) return error;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxGetApiVersion)(CUcontext handle, unsigned* version) {
  CUctx_st* context;
  if (CUresult error = sim::context_of(handle, &context)) return error;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = context->api_version;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxGetLimit)(size_t* value, CUlimit limit) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = context->limits[limit];
  return CUDA_SUCCESS;
}

SIM_API(cuCtxSetLimit)(CUlimit limit, size_t value) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  return sim::set_limit(context->owner, limit, value);
}

SIM_API(cuCtxGetCacheConfig)(CUfunc_cache* config) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = context->cache_config;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxSetCacheConfig)(CUfunc_cache config) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  context->cache_config = config;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxGetSharedMemConfig)(CUsharedconfig* config) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxSetSharedMemConfig)(CUsharedconfig) {
  CUctx_st* context;
  return sim::current_context(&context);
}

SIM_API(cuCtxResetPersistingL2Cache)(void) {
  CUctx_st* context;
  return sim::current_context(&context);
}

SIM_API(cuCtxGetStreamPriorityRange)(int* least, int* greatest) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

SIM_API(cuCtxGetExecAffinity)(CUexecAffinityParam*, CUexecAffinityType) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

SIM_API(cuCtxEnablePeerAccess)(CUcontext peer, unsigned flags) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!sim::is_context(peer)) return CUDA_ERROR_INVALID_CONTEXT;
  return peer->device == context->device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

SIM_API(cuCtxDisablePeerAccess)(CUcontext peer) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  return sim::is_context(peer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_API(cuCtxSynchronize_v2)(CUcontext handle) {
  CUctx_st* context;
  if (CUresult error = sim::context_of(handle, &context)) return error;
  if (CUresult error = sim::refuse_during_capture()) return error;
  return sim::synchronize_context(context);
}
SIM_API(cuCtxSynchronize)(void) { return sim_cuCtxSynchronize_v2(nullptr); }
