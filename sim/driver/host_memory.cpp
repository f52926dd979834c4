// SPDX-License-Identifier: Apache-2.0
//
// Page-locked host memory, and what the driver says about any pointer.
#include <sys/mman.h>

#include <cstring>

#include "sim/driver/arena.h"
#include "sim/driver/capture.h"
#include "sim/driver/memory.h"

namespace sim {
namespace {

CUresult allocate_host(void** result, size_t bytes, unsigned flags) {
  CUctx_st* context;
  if (CUresult error = current_context(&context)) return error;
  if (result == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = refuse_during_capture()) return error;
  Allocation allocation;
  allocation.size = bytes;
  allocation.backing = round_up(bytes, 4096);
  allocation.kind = Allocation::Kind::kHost;
  allocation.device = context->device;
  allocation.context = context->owner;
  allocation.host_flags = flags;
  // Shared, as a child of fork finds the same pages, pinned as they are.
  void* memory = mmap(nullptr, allocation.backing, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  allocation.base = reinterpret_cast<uint64_t>(memory);
  remember(allocation);
  *result = memory;
  return CUDA_SUCCESS;
}

CUresult register_host(void* pointer, size_t bytes, unsigned flags) {
  CUctx_st* context;
  if (CUresult error = current_context(&context)) return error;
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t base = reinterpret_cast<uint64_t>(pointer);
  if (find_allocation(base) || find_allocation(base + bytes - 1))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  Allocation allocation;
  allocation.base = base;
  allocation.size = bytes;
  allocation.kind = Allocation::Kind::kRegistered;
  allocation.device = context->device;
  allocation.context = context->owner;
  allocation.host_flags = flags;
  remember(allocation);
  return CUDA_SUCCESS;
}

// Every caller's variable has the size that cuda.h documents; booleans are read as 4 bytes by cudart.
template <typename Value>
CUresult put(void* data, Value value) {
  memcpy(data, &value, sizeof value);  // NOLINT(bugprone-sizeof-expression): of a handle too
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, const Allocation& allocation,
                           CUdeviceptr pointer) {
  const bool mapped = allocation.kind == Allocation::Kind::kMapped;
  const bool host_readable = allocation.on_host() || allocation.kind == Allocation::Kind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (mapped) return CUDA_ERROR_INVALID_VALUE;
      return put<CUcontext>(
          data, allocation.context != nullptr ? allocation.context : primary_context(allocation.device));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<CUmemorytype>(data, allocation.on_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put<CUdeviceptr>(data, pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host_readable) return CUDA_ERROR_INVALID_VALUE;
      return put<CUdeviceptr>(data, pointer);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put<int>(data, 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put<unsigned long long>(data, allocation.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put<int>(data, allocation.kind == Allocation::Kind::kManaged);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put<int>(data, allocation.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<int>(data, allocation.kind == Allocation::Kind::kDevice);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put<CUdeviceptr>(data, allocation.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put<size_t>(data, allocation.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put<int>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put<cuuint64_t>(data,
                             mapped ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put<int>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put<int>(data, allocation.accessible ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                                                  : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put<CUmemoryPool>(data, allocation.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put<size_t>(data, allocation.size);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put<CUdeviceptr>(data, allocation.base);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put<int>(data, 0);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// What cuPointerGetAttributes says of a pointer that the driver does not know, and of what does not apply to
// one.
void put_nothing(void* data, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      put<int>(data, -2);
      break;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      put<uint64_t>(data, 0);
      break;
    default:
      put<int>(data, 0);
      break;
  }
}

CUresult attributes_of(unsigned count, const CUpointer_attribute* attributes, void** data,
                       CUdeviceptr pointer) {
  const auto allocation = find_allocation(pointer);
  for (unsigned i = 0; i < count; ++i) {
    if (!allocation || pointer_attribute(data[i], attributes[i], *allocation, pointer) != CUDA_SUCCESS) {
      put_nothing(data[i], attributes[i]);
      if (allocation && attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) put<CUdeviceptr>(data[i], 0);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_API(cuMemHostAlloc)(void** result, size_t bytes, unsigned flags) {
  return sim::allocate_host(result, bytes, flags);
}
SIM_API(cuMemAllocHost_v2)(void** result, size_t bytes) { return sim::allocate_host(result, bytes, 0); }

SIM_API(cuMemFreeHost)(void* pointer) {
  if (CUresult error = sim::ready()) return error;
  const auto found = sim::allocation_at(reinterpret_cast<uint64_t>(pointer));
  if (!found || found->kind != sim::Allocation::Kind::kHost) return CUDA_ERROR_INVALID_VALUE;
  if (const auto allocation = sim::forget(found->base)) sim::release_allocation(*allocation);
  return CUDA_SUCCESS;
}

SIM_API(cuMemHostRegister_v2)(void* pointer, size_t bytes, unsigned flags) {
  return sim::register_host(pointer, bytes, flags);
}
SIM_API(cuMemHostRegister)(void* pointer, size_t bytes, unsigned flags) {
  return sim::register_host(pointer, bytes, flags);
}

SIM_API(cuMemHostUnregister)(void* pointer) {
  if (CUresult error = sim::ready()) return error;
  const auto found = sim::allocation_at(reinterpret_cast<uint64_t>(pointer));
  if (!found || found->kind != sim::Allocation::Kind::kRegistered)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  sim::forget(found->base);
  return CUDA_SUCCESS;
}

SIM_API(cuMemHostGetDevicePointer_v2)(CUdeviceptr* device_pointer, void* pointer, unsigned) {
  if (CUresult error = sim::ready()) return error;
  const auto found = sim::find_allocation(reinterpret_cast<uint64_t>(pointer));
  if (device_pointer == nullptr || !found || !found->on_host()) return CUDA_ERROR_INVALID_VALUE;
  *device_pointer = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

SIM_API(cuMemHostGetFlags)(unsigned* flags, void* pointer) {
  if (CUresult error = sim::ready()) return error;
  const auto found = sim::find_allocation(reinterpret_cast<uint64_t>(pointer));
  if (flags == nullptr || !found || found->kind != sim::Allocation::Kind::kHost)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = found->host_flags;
  return CUDA_SUCCESS;
}

SIM_API(cuPointerGetAttribute)(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (CUresult error = sim::ready()) return error;
  const auto allocation = sim::find_allocation(pointer);
  if (data == nullptr || !allocation) return CUDA_ERROR_INVALID_VALUE;
  return sim::pointer_attribute(data, attribute, *allocation, pointer);
}

SIM_API(cuPointerGetAttributes)
(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr pointer) {
  if (CUresult error = sim::ready()) return error;
  if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return sim::attributes_of(count, attributes, data, pointer);
}

SIM_API(cuPointerSetAttribute)(const void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (CUresult error = sim::ready()) return error;
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  return sim::find_allocation(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Managed memory has one home here; where it should be is accepted and has no effect.
SIM_API(cuMemAdvise)(CUdeviceptr address, size_t bytes, CUmem_advise, CUdevice) {
  if (CUresult error = sim::ready()) return error;
  return sim::is_known_memory(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_API(cuMemAdvise_v2)(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation) {
  return sim_cuMemAdvise(address, bytes, advice, 0);
}
SIM_API(cuMemPrefetchAsync)(CUdeviceptr address, size_t bytes, CUdevice, CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  const auto allocation = sim::find_allocation(address);
  if (!allocation || allocation->kind != sim::Allocation::Kind::kManaged) return CUDA_ERROR_INVALID_VALUE;
  if (!sim::is_known_memory(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return sim::perform(stream, sim::Nothing{});
}
SIM_API(cuMemPrefetchAsync_v2)(CUdeviceptr address, size_t bytes, CUmemLocation, unsigned, CUstream stream) {
  return sim_cuMemPrefetchAsync(address, bytes, 0, stream);
}
SIM_API(cuMemRangeGetAttribute)
(void* data, size_t bytes, CUmem_range_attribute, CUdeviceptr address, size_t count) {
  if (CUresult error = sim::ready()) return error;
  if (data == nullptr || bytes == 0 || !sim::is_known_memory(address, count)) return CUDA_ERROR_INVALID_VALUE;
  memset(data, 0, bytes);
  return CUDA_SUCCESS;
}
