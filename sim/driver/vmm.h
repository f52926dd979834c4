// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: address ranges, memory handles, and mappings of one into the other.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "sim/driver/api.h"

namespace sim {

// A part of a multicast object that a device's memory is bound to.
struct MulticastBinding {
  CUdevice device;
  uint64_t offset, bytes;
  uint64_t memory;  // the handle of what is bound, kept while it is; 0: memory that no handle is known of
};

struct Memory {
  uint64_t arena = 0;  // the range, header included; 0: imported
  uint64_t base = 0;   // where this process has the memory mapped whole
  uint64_t bytes = 0;
  bool charged = false;  // taken from the device
  CUmemAllocationProp prop{};
  uint64_t shared_key = 0;  // the node's, of what was exported or imported; 0: neither
  unsigned handles = 0;     // references by cuMemCreate, cuMemRetainAllocationHandle, import
  unsigned mappings = 0;    // and by mappings, sparse arrays and multicast objects

  // Of a multicast object: it is addresses only, and takes nothing of any device.
  unsigned multicast_devices = 0;  // how many it was made for; 0: not a multicast object
  std::set<CUdevice> members;
  std::vector<MulticastBinding> bindings;
};

struct Vmm {
  std::mutex mutex;
  std::map<uint64_t, uint64_t> ranges;  // reserved: base -> bytes
  std::map<uint64_t, Memory> memories;  // handle -> memory
  uint64_t next_handle = 0x1000;
};

Vmm& vmm();

// The mutex is held for all of these.
uint64_t add_memory(Vmm& v, const Memory& memory);  // its handle
Memory* find_memory(Vmm& v, uint64_t handle);       // nullptr: released, or never made
void let_memory_go(Vmm& v, uint64_t handle);        // one mapping less; ends it with the last reference

// The memory that a file descriptor of an export stands for, mapped into this process.
struct SharedMemory {
  uint64_t base;
  uint64_t bytes;
  CUdevice device;
  unsigned multicast_devices;
  uint64_t key;  // this process holds it until let_shared_memory_go()
};
// CUDA_ERROR_INVALID_VALUE: it is of no export.
CUresult map_shared(int fd, SharedMemory* memory);

// True if the address lies in a range of cuMemAddressReserve.
bool in_reserved_range(uint64_t address);

}  // namespace sim
