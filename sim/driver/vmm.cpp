// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/vmm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "sim/driver/arena.h"
#include "sim/driver/memory.h"

namespace sim {
namespace {

// A handle's memory is a range of the arena: first one granule for what an importing process has to know,
// then the memory itself. The header is written only when the handle is exported.
struct SharedHeader {
  static constexpr uint64_t kMagic = 0x73696d756c617465;
  uint64_t magic;
  uint64_t bytes;
  uint32_t multicast_devices;
  int32_t node_device;  // which of the node's, whatever this process or that calls it
  uint64_t key;         // 0: memory of the host, or a multicast object
};

// Precondition: mutex held.
bool reserved(Vmm& v, uint64_t address, uint64_t bytes) {
  auto range = v.ranges.upper_bound(address);
  if (range == v.ranges.begin()) return false;
  --range;
  return address + bytes <= range->first + range->second && address + bytes >= address;
}

// Ends memory that nothing refers to any more. Precondition: mutex held.
void end_unused(Vmm& v, uint64_t handle) {
  const auto found = v.memories.find(handle);
  const Memory& memory = found->second;
  if (memory.handles != 0 || memory.mappings != 0) return;
  if (memory.arena != 0) {
    arena_release(memory.arena, memory.bytes + kGranule);
  } else {
    munmap(reinterpret_cast<void*>(memory.base), memory.bytes);
  }
  if (memory.shared_key != 0 && memory.arena == 0) {
    Node::get().let_shared_memory_go(node_device(memory.prop.location.id), memory.shared_key);
  } else if (memory.shared_key != 0) {
    Node::get().give_shared_memory(node_device(memory.prop.location.id), memory.shared_key);
  } else if (memory.charged) {
    give_device_memory(memory.prop.location.id, memory.bytes);
  }
  const std::vector<MulticastBinding> bindings = memory.bindings;
  v.memories.erase(found);
  for (const MulticastBinding& binding : bindings) {
    if (binding.memory != 0) let_memory_go(v, binding.memory);
  }
}

bool location_on_device(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

CUresult check_prop(const CUmemAllocationProp* prop) {
  if (CUresult error = ready()) return error;
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return valid_device(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Fails only past the host's limit of mappings; what was there stays then, and a stray access is not caught.
void no_access(uint64_t address, uint64_t bytes) {
  static_cast<void>(mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
}

}  // namespace

Vmm& vmm() {
  static Vmm& instance = *new Vmm;
  return instance;
}

uint64_t add_memory(Vmm& v, const Memory& memory) {
  const uint64_t handle = v.next_handle++;
  v.memories[handle] = memory;
  return handle;
}

Memory* find_memory(Vmm& v, uint64_t handle) {
  const auto found = v.memories.find(handle);
  return found != v.memories.end() && found->second.handles != 0 ? &found->second : nullptr;
}

void let_memory_go(Vmm& v, uint64_t handle) {
  --v.memories[handle].mappings;
  end_unused(v, handle);
}

CUresult map_shared(int fd, SharedMemory* memory) {
  const off_t offset = lseek(fd, 0, SEEK_CUR);
  SharedHeader header{};
  if (offset < 0 || pread(fd, &header, sizeof header, offset) != sizeof header ||
      header.magic != SharedHeader::kMagic || header.bytes % kGranule != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // What is imported stays in use whatever becomes of the exporter.
  if (header.key != 0 && !Node::get().hold_shared_memory(header.node_device, header.key)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* mapping = mmap(nullptr, header.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                       offset + static_cast<off_t>(kGranule));
  if (mapping == MAP_FAILED) {
    if (header.key != 0) Node::get().let_shared_memory_go(header.node_device, header.key);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  memory->base = reinterpret_cast<uint64_t>(mapping);
  memory->bytes = header.bytes;
  memory->device = 0;
  for (CUdevice device = 0; device < visible_devices(); ++device) {
    if (node_device(device) == header.node_device) memory->device = device;
  }
  memory->multicast_devices = header.multicast_devices;
  memory->key = header.key;
  return CUDA_SUCCESS;
}

bool in_reserved_range(uint64_t address) {
  Vmm& v = vmm();
  std::lock_guard lock(v.mutex);
  return reserved(v, address, 1);
}

}  // namespace sim

using sim::kGranule;

SIM_API(cuMemGetAllocationGranularity)
(size_t* granularity, const CUmemAllocationProp* prop, CUmemAllocationGranularity_flags) {
  if (CUresult error = sim::check_prop(prop)) return error;
  if (granularity == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranule;
  return CUDA_SUCCESS;
}

SIM_API(cuMemAddressReserve)
(CUdeviceptr* result, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags) {
  if (CUresult error = sim::ready()) return error;
  if (result == nullptr || bytes == 0 || bytes % kGranule != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (alignment != 0 && (alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t unit = std::max<uint64_t>(alignment, kGranule);
  // More than is needed, so that an aligned part of it can be kept.
  void* hint = reinterpret_cast<void*>(wanted);
  void* mapping = mmap(hint, bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t start = reinterpret_cast<uint64_t>(mapping);
  const uint64_t base = sim::round_up(start, unit);
  if (base > start) munmap(mapping, base - start);
  munmap(reinterpret_cast<void*>(base + bytes), start + unit - base);
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  v.ranges[base] = bytes;
  *result = base;
  return CUDA_SUCCESS;
}

SIM_API(cuMemAddressFree)(CUdeviceptr address, size_t bytes) {
  if (CUresult error = sim::ready()) return error;
  if (!sim::mapped_in(address, bytes).empty()) return CUDA_ERROR_INVALID_VALUE;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  const auto range = v.ranges.find(address);
  if (range == v.ranges.end() || range->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  v.ranges.erase(range);
  munmap(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}

SIM_API(cuMemCreate)
(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop,
 unsigned long long flags) {
  if (CUresult error = sim::check_prop(prop)) return error;
  if (handle == nullptr || bytes == 0 || bytes % kGranule != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  constexpr unsigned kSupported = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if ((static_cast<unsigned>(prop->requestedHandleTypes) & ~kSupported) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  sim::Memory memory;
  memory.bytes = bytes;
  memory.prop = *prop;
  memory.handles = 1;
  memory.charged = sim::location_on_device(prop->location);
  if (memory.charged && !sim::take_device_memory(prop->location.id, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  memory.arena = sim::arena_allocate(bytes + kGranule);
  if (memory.arena == 0) {
    if (memory.charged) sim::give_device_memory(prop->location.id, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory.base = memory.arena + kGranule;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  *handle = sim::add_memory(v, memory);
  return CUDA_SUCCESS;
}

SIM_API(cuMemRelease)(CUmemGenericAllocationHandle handle) {
  if (CUresult error = sim::ready()) return error;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  sim::Memory* memory = sim::find_memory(v, handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  --memory->handles;
  sim::end_unused(v, handle);
  return CUDA_SUCCESS;
}

SIM_API(cuMemMap)
(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
 unsigned long long flags) {
  if (CUresult error = sim::ready()) return error;
  if (bytes == 0 || address % kGranule != 0 || bytes % kGranule != 0 || offset % kGranule != 0 ||
      flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  sim::Memory* found = sim::find_memory(v, handle);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  sim::Memory& memory = *found;
  if (offset + bytes > memory.bytes || !sim::reserved(v, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (!sim::mapped_in(address, bytes).empty()) return CUDA_ERROR_INVALID_VALUE;
  if (!sim::arena_map_alias(memory.base + offset, address, bytes)) return CUDA_ERROR_OPERATING_SYSTEM;
  ++memory.mappings;
  sim::Allocation allocation;
  allocation.base = address;
  allocation.size = bytes;
  allocation.backing = bytes;
  allocation.kind = sim::Allocation::Kind::kMapped;
  allocation.accessible = false;
  allocation.device = sim::location_on_device(memory.prop.location) ? memory.prop.location.id : 0;
  allocation.handle = handle;
  allocation.handle_offset = offset;
  sim::remember(allocation);
  return CUDA_SUCCESS;
}

SIM_API(cuMemUnmap)(CUdeviceptr address, size_t bytes) {
  if (CUresult error = sim::ready()) return error;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  const auto mappings = sim::mapped_in(address, bytes);
  uint64_t covered = 0;
  for (const sim::Allocation& mapping : mappings) covered += mapping.size;
  if (covered != bytes || bytes == 0) return CUDA_ERROR_INVALID_VALUE;  // only whole mappings
  for (const sim::Allocation& mapping : mappings) {
    sim::forget(mapping.base);
    sim::no_access(mapping.base, mapping.size);
    sim::let_memory_go(v, mapping.handle);
  }
  return CUDA_SUCCESS;
}

SIM_API(cuMemSetAccess)(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  if (CUresult error = sim::ready()) return error;
  if (access == nullptr || count == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  int protection = PROT_NONE;
  for (size_t i = 0; i < count; ++i) {
    if (sim::location_on_device(access[i].location) && !sim::valid_device(access[i].location.id)) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ) protection |= PROT_READ;
    if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_READ | PROT_WRITE;
  }
  if (!sim::set_mapped_access(address, bytes, protection != PROT_NONE)) return CUDA_ERROR_INVALID_VALUE;
  const bool changed = mprotect(reinterpret_cast<void*>(address), bytes, protection) == 0;
  return changed ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

SIM_API(cuMemGetAccess)(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  if (CUresult error = sim::ready()) return error;
  const auto allocation = sim::find_allocation(address);
  if (flags == nullptr || location == nullptr || !allocation) return CUDA_ERROR_INVALID_VALUE;
  *flags = allocation->accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

SIM_API(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle* handle, void* address) {
  if (CUresult error = sim::ready()) return error;
  const auto allocation = sim::find_allocation(reinterpret_cast<uint64_t>(address));
  if (handle == nullptr || !allocation || allocation->kind != sim::Allocation::Kind::kMapped) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  const auto found = v.memories.find(allocation->handle);
  if (found == v.memories.end()) return CUDA_ERROR_INVALID_VALUE;
  ++found->second.handles;
  *handle = allocation->handle;
  return CUDA_SUCCESS;
}

SIM_API(cuMemGetAllocationPropertiesFromHandle)
(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  if (CUresult error = sim::ready()) return error;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  const auto found = v.memories.find(handle);
  if (prop == nullptr || found == v.memories.end()) return CUDA_ERROR_INVALID_VALUE;
  *prop = found->second.prop;
  return CUDA_SUCCESS;
}

SIM_API(cuMemExportToShareableHandle)
(void* result, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
 unsigned long long flags) {
  if (CUresult error = sim::ready()) return error;
  if (result == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  const auto found = v.memories.find(handle);
  if (found == v.memories.end()) return CUDA_ERROR_INVALID_VALUE;
  sim::Memory& memory = found->second;
  if ((memory.prop.requestedHandleTypes & type) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (memory.arena == 0) return CUDA_ERROR_NOT_SUPPORTED;  // imported, and exported again
  const sim::ArenaFile file = sim::arena_file(memory.arena);
  if (file.fd < 0) return CUDA_ERROR_NOT_SUPPORTED;
  const int node_device = memory.charged ? sim::node_device(memory.prop.location.id) : 0;
  if (memory.charged && memory.shared_key == 0) {
    memory.shared_key = sim::Node::get().share_memory(node_device, memory.bytes);
    if (memory.shared_key == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *reinterpret_cast<sim::SharedHeader*>(memory.arena) = {
      sim::SharedHeader::kMagic, memory.bytes, memory.multicast_devices, node_device, memory.shared_key};
  // An open file of its own, whose position says which memory is meant: the position travels with the
  // descriptor.
  const std::string path = "/proc/self/fd/" + std::to_string(file.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (lseek(fd, static_cast<off_t>(file.offset), SEEK_SET) < 0) {
    close(fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int*>(result) = fd;
  return CUDA_SUCCESS;
}

SIM_API(cuMemImportFromShareableHandle)
(CUmemGenericAllocationHandle* handle, void* os_handle, CUmemAllocationHandleType type) {
  if (CUresult error = sim::ready()) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(os_handle));
  sim::SharedMemory shared;
  if (CUresult error = sim::map_shared(fd, &shared)) return error;
  sim::Memory memory;
  memory.base = shared.base;
  memory.bytes = shared.bytes;
  memory.handles = 1;
  memory.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  memory.prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory.prop.location.id = shared.device;
  memory.multicast_devices = shared.multicast_devices;
  memory.shared_key = shared.key;
  sim::Vmm& v = sim::vmm();
  std::lock_guard lock(v.mutex);
  *handle = sim::add_memory(v, memory);
  return CUDA_SUCCESS;
}
