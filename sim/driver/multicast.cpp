// SPDX-License-Identifier: Apache-2.0
//
// Multicast objects: addresses behind which the memory of several devices is bound. Only kernels can write
// through them, so nothing is ever written; what is simulated is who may bind what, and who keeps it alive.
#include <algorithm>

#include "sim/driver/arena.h"
#include "sim/driver/memory.h"
#include "sim/driver/vmm.h"

namespace sim {
namespace {

CUresult check_prop(const CUmulticastObjectProp* prop) {
  if (CUresult error = ready()) return error;
  if (prop == nullptr || prop->flags != 0 || prop->size == 0 || prop->numDevices == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return prop->numDevices <= static_cast<unsigned>(visible_devices()) ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_DEVICE;
}

// A multicast object. Precondition: mutex held.
Memory* find_object(Vmm& v, uint64_t handle) {
  Memory* object = find_memory(v, handle);
  return object != nullptr && object->multicast_devices != 0 ? object : nullptr;
}

bool overlaps(const Memory& object, const MulticastBinding& wanted) {
  return std::any_of(object.bindings.begin(), object.bindings.end(), [&](const MulticastBinding& binding) {
    return binding.device == wanted.device && binding.offset < wanted.offset + wanted.bytes &&
           wanted.offset < binding.offset + binding.bytes;
  });
}

// Precondition: mutex held.
CUresult bind(Vmm& v, uint64_t handle, const MulticastBinding& binding) {
  Memory* object = find_object(v, handle);
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (binding.bytes == 0 || binding.offset % kGranule != 0 || binding.bytes % kGranule != 0 ||
      binding.offset > object->bytes || binding.bytes > object->bytes - binding.offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!object->members.contains(binding.device)) return CUDA_ERROR_INVALID_DEVICE;
  if (overlaps(*object, binding)) return CUDA_ERROR_INVALID_VALUE;
  if (binding.memory != 0) {
    const auto memory = v.memories.find(binding.memory);
    if (memory == v.memories.end()) return CUDA_ERROR_INVALID_VALUE;
    ++memory->second.mappings;
  }
  object->bindings.push_back(binding);
  return CUDA_SUCCESS;
}

CUresult bind_memory(uint64_t handle, CUdevice device, uint64_t offset, uint64_t memory_handle,
                     uint64_t memory_offset, uint64_t bytes, unsigned long long flags) {
  if (CUresult error = ready()) return error;
  Vmm& v = vmm();
  std::lock_guard lock(v.mutex);
  const Memory* memory = find_memory(v, memory_handle);
  if (memory == nullptr || memory->multicast_devices != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (memory_offset > memory->bytes || bytes > memory->bytes - memory_offset) return CUDA_ERROR_INVALID_VALUE;
  if (memory->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0) device = memory->prop.location.id;
  return bind(v, handle, {device, offset, bytes, memory_handle});
}

CUresult bind_address(uint64_t handle, CUdevice device, uint64_t offset, CUdeviceptr address, uint64_t bytes,
                      unsigned long long flags) {
  if (CUresult error = ready()) return error;
  const auto allocation = find_allocation(address);
  if (!allocation || allocation->on_host() || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > allocation->base + allocation->backing - address) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0) device = allocation->device;
  Vmm& v = vmm();
  std::lock_guard lock(v.mutex);
  return bind(v, handle, {device, offset, bytes, allocation->handle});
}

}  // namespace
}  // namespace sim

SIM_API(cuMulticastGetGranularity)
(size_t* granularity, const CUmulticastObjectProp* prop, CUmulticastGranularity_flags) {
  if (CUresult error = sim::check_prop(prop)) return error;
  if (granularity == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *granularity = sim::kGranule;
  return CUDA_SUCCESS;
}

SIM_API(cuMulticastCreate)(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* prop) {
  if (CUresult error = sim::check_prop(prop)) return error;
  if (handle == nullptr || prop->size % sim::kGranule != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((prop->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  sim::Memory object;
  object.bytes = prop->size;
  object.handles = 1;
  object.multicast_devices = prop->numDevices;
  object.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  object.prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(prop->handleTypes);
  object.arena = sim::arena_allocate(object.bytes + sim::kGranule);
  if (object.arena == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  object.base = object.arena + sim::kGranule;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  *handle = sim::add_memory(v, object);
  return CUDA_SUCCESS;
}

SIM_API(cuMulticastAddDevice)(CUmemGenericAllocationHandle handle, CUdevice device) {
  if (CUresult error = sim::check_device(device)) return error;
  if (!sim::supports_multicast(device)) return CUDA_ERROR_NOT_SUPPORTED;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  sim::Memory* object = sim::find_object(v, handle);
  if (object == nullptr || object->members.contains(device) ||
      object->members.size() == object->multicast_devices) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  object->members.insert(device);
  return CUDA_SUCCESS;
}

SIM_API(cuMulticastBindMem)
(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
 size_t memory_offset, size_t bytes, unsigned long long flags) {
  return sim::bind_memory(handle, -1, offset, memory, memory_offset, bytes, flags);
}
SIM_API(cuMulticastBindMem_v2)
(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, CUmemGenericAllocationHandle memory,
 size_t memory_offset, size_t bytes, unsigned long long flags) {
  if (CUresult error = sim::check_device(device)) return error;
  return sim::bind_memory(handle, device, offset, memory, memory_offset, bytes, flags);
}

SIM_API(cuMulticastBindAddr)
(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address, size_t bytes,
 unsigned long long flags) {
  return sim::bind_address(handle, -1, offset, address, bytes, flags);
}
SIM_API(cuMulticastBindAddr_v2)
(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, CUdeviceptr address, size_t bytes,
 unsigned long long flags) {
  if (CUresult error = sim::check_device(device)) return error;
  return sim::bind_address(handle, device, offset, address, bytes, flags);
}

SIM_API(cuMulticastUnbind)
(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes) {
  if (CUresult error = sim::check_device(device)) return error;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  sim::Memory* object = sim::find_object(v, handle);
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto bound = std::find_if(object->bindings.begin(), object->bindings.end(), [&](const auto& binding) {
    return binding.device == device && binding.offset == offset && binding.bytes == bytes;
  });
  if (bound == object->bindings.end()) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t memory = bound->memory;
  object->bindings.erase(bound);
  if (memory != 0) sim::let_memory_go(v, memory);
  return CUDA_SUCCESS;
}
