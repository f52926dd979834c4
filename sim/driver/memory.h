// SPDX-License-Identifier: Apache-2.0
//
// What lies at which address, and what it takes of the device. Every piece of memory that the driver knows is
// an Allocation in one ordered map, whichever function made it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/driver/api.h"
#include "sim/driver/context.h"

namespace sim {

struct Allocation {
  enum class Kind : uint8_t {
    kDevice,      // cuMemAlloc, cuMemAllocPitch; small ones lie in their context's heap
    kManaged,     // never small
    kPool,        // cuMemAllocAsync and its kin
    kGraph,       // a graph's allocation node, while it is allocated
    kModule,      // a __device__ variable
    kMapped,      // cuMemMap
    kImported,    // cuIpcOpenMemHandle
    kExternal,    // a buffer in imported external memory
    kHost,        // cuMemHostAlloc
    kRegistered,  // cuMemHostRegister
  };
  uint64_t base = 0;
  uint64_t size = 0;     // as the caller asked
  uint64_t backing = 0;  // bytes of the heap or the arena behind it
  Kind kind = Kind::kDevice;
  bool accessible = true;  // kMapped: cuMemSetAccess gave access
  bool small = false;      // in its context's small heap
  bool charged = true;     // its backing was taken from the device
  CUdevice device = 0;
  CUctx_st* context = nullptr;
  uint64_t id = 0;          // as CU_POINTER_ATTRIBUTE_BUFFER_ID
  unsigned host_flags = 0;  // kHost, kRegistered
  CUmemoryPool pool = nullptr;
  uint64_t handle = 0;  // kMapped: the CUmemGenericAllocationHandle
  uint64_t handle_offset = 0;
  std::shared_ptr<const void> keeps;  // kGraph, kExternal: what its addresses are a part of

  bool on_host() const { return kind == Kind::kHost || kind == Kind::kRegistered; }
};

// Fills in the id.
void remember(Allocation allocation);
std::optional<Allocation> find_allocation(uint64_t address);  // that contains the address
std::optional<Allocation> allocation_at(uint64_t base);       // that starts there
std::optional<Allocation> forget(uint64_t base);              // nullopt: nothing starts there
// All that `which` says true of, taken out of the map. `which` must not look at the map.
std::vector<Allocation> forget_if(const std::function<bool(const Allocation&)>& which);
// Changes the access of the mappings in the range; false if a part of it has no mapping.
bool set_mapped_access(uint64_t address, uint64_t bytes, bool accessible);
std::vector<Allocation> mapped_in(uint64_t address, uint64_t bytes);

// True if [address, address + bytes) is memory that a copy may touch: live device memory, or any host memory.
bool may_touch(uint64_t address, uint64_t bytes);
// True if it is memory that the driver knows.
bool is_known_memory(uint64_t address, uint64_t bytes);

// Takes device memory; before it gives up, lets go of what pools hold without use, as the driver does.
bool take_device_memory(CUdevice device, uint64_t bytes, Node::Memory kind = Node::Memory::kListed);
void give_device_memory(CUdevice device, uint64_t bytes, Node::Memory kind = Node::Memory::kListed);

CUresult allocate_device_memory(CUctx_st* context, uint64_t bytes, Allocation::Kind kind,
                                CUdeviceptr* result);
// Address space for a variable whose size is not known; takes nothing of the device.
CUresult reserve_module_memory(CUctx_st* context, uint64_t bytes, CUdeviceptr* result);
void release_allocation(const Allocation& allocation);  // after forget()
void release_memory_of(CUctx_st* context);

}  // namespace sim
