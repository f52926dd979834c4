// SPDX-License-Identifier: Apache-2.0
//
// Physical memory, and what keeps it alive beside its handles and mappings: the tiles of sparse arrays,
// multicast objects and logical endpoints that it is bound to.
#pragma once

#include "interpose/quota.h"

namespace hook {

struct Physical;

// One more use of memory that is charged here, by its handle or an address that it is mapped at; nullptr: of
// other memory. drop_use() ends it, and the charge with the last one.
Physical* use_handle(CUmemGenericAllocationHandle handle);
Physical* use_address(CUdeviceptr address);
void drop_use(Physical* physical);

// Where in its owner memory is bound.
struct BoundRegion {
  uint64_t part;  // a device, kAnyPart, or a level and layer
  uint64_t offset;
  uint64_t extent;
};
constexpr uint64_t kAnyPart = ~uint64_t{0};  // the memory's own device, which the call did not name
// Owners by key: arrays by array_key(), and these.
constexpr uint64_t multicast_key(CUmemGenericAllocationHandle object) { return object | uint64_t{1} << 63; }
constexpr uint64_t endpoint_key(uint64_t id) { return id | uint64_t{1} << 62; }

// From now on the use is the binding's; what was bound to exactly that region is dropped. Without memory to
// remember it the use stays until the process ends.
void bind(uint64_t owner, const BoundRegion& region, Physical* physical);
// Drops what is bound to exactly that region; to regions that lie in that one; to any.
void unbind(uint64_t owner, const BoundRegion& region);
void unbind_within(uint64_t owner, const BoundRegion& region);
void unbind_all(uint64_t owner);
bool has_bindings(uint64_t owner);
// Bindings to a multicast object end with its last handle and mapping.
void remember_multicast(CUmemGenericAllocationHandle object);

void forget_physical_memory();

}  // namespace hook
