// SPDX-License-Identifier: Apache-2.0
//
// What physical memory can be bound to: tiles of sparse arrays, multicast objects, logical endpoints. A
// binding keeps the memory when its handle is released, and so the charge.
#include "interpose/allocations.h"
#include "interpose/vmm.h"

namespace hook {
namespace {

// Binds by the driver's `call`. The use is counted before: another thread may release the handle meanwhile.
template <typename Call>
CUresult bound(uint64_t owner, const BoundRegion& region, Physical* physical, Call call) {
  const CUresult result = call();
  if (result == CUDA_SUCCESS) {
    bind(owner, region, physical);
  } else {
    drop_use(physical);
  }
  return result;
}

template <typename Call>
CUresult bound_to_multicast(CUmemGenericAllocationHandle object, uint64_t device, uint64_t offset,
                            uint64_t bytes, Physical* physical, Call call) {
  const BoundRegion region = {device, offset, bytes};
  const CUresult result = bound(multicast_key(object), region, physical, call);
  if (result == CUDA_SUCCESS && physical != nullptr) remember_multicast(object);
  return result;
}

template <typename Call>
CUresult unbound(uint64_t owner, const BoundRegion& region, Call call) {
  const InFlightOnAll in_flight;
  const CUresult result = call();
  if (result == CUDA_SUCCESS) unbind_within(owner, region);
  return result;
}

uint64_t owner_of_tiles(const CUarrayMapInfo& map) {
  return map.resourceType == CU_RESOURCE_TYPE_ARRAY ? array_key(map.resource.array)
                                                    : array_key(map.resource.mipmap);
}

// A map or unmap of the same tiles names the same region. Of a part of a region nothing is dropped before the
// array ends.
BoundRegion region_of_tiles(const CUarrayMapInfo& map) {
  if (map.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    const auto& tail = map.subresource.miptail;
    return {uint64_t{1} << 63 | tail.layer, tail.offset, tail.size};
  }
  const auto& tiles = map.subresource.sparseLevel;
  return {uint64_t{tiles.level} << 32 | tiles.layer,
          uint64_t{tiles.offsetZ} << 48 | uint64_t{tiles.offsetY} << 24 | tiles.offsetX,
          uint64_t{tiles.extentDepth} << 48 | uint64_t{tiles.extentHeight} << 24 | tiles.extentWidth};
}

template <typename Call>
CUresult mapped_tiles(CUarrayMapInfo* list, unsigned int count, Call call) {
  if (list == nullptr || membership() != Membership::kAttached) return call();
  const InFlightOnAll in_flight;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) return result;
  for (unsigned int i = 0; i < count; i++) {
    const CUarrayMapInfo& map = list[i];
    if (map.memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
      bind(owner_of_tiles(map), region_of_tiles(map), use_handle(map.memHandle.memHandle));
    } else {
      unbind(owner_of_tiles(map), region_of_tiles(map));
    }
  }
  return result;
}

}  // namespace

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags) noexcept {
  return bound_to_multicast(mcHandle, kAnyPart, mcOffset, size, use_handle(memHandle), [=] {
    return real<fn::cuMulticastBindMem>(mcHandle, mcOffset, memHandle, memOffset, size, flags);
  });
}
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                               unsigned long long flags) noexcept {
  return bound_to_multicast(mcHandle, static_cast<uint64_t>(dev), mcOffset, size, use_handle(memHandle), [=] {
    return real<fn::cuMulticastBindMem_v2>(mcHandle, dev, mcOffset, memHandle, memOffset, size, flags);
  });
}
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr,
                             size_t size, unsigned long long flags) noexcept {
  return bound_to_multicast(mcHandle, kAnyPart, mcOffset, size, use_address(memptr), [=] {
    return real<fn::cuMulticastBindAddr>(mcHandle, mcOffset, memptr, size, flags);
  });
}
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                CUdeviceptr memptr, size_t size, unsigned long long flags) noexcept {
  return bound_to_multicast(mcHandle, static_cast<uint64_t>(dev), mcOffset, size, use_address(memptr), [=] {
    return real<fn::cuMulticastBindAddr_v2>(mcHandle, dev, mcOffset, memptr, size, flags);
  });
}
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                           size_t size) noexcept {
  return unbound(multicast_key(mcHandle), {static_cast<uint64_t>(dev), mcOffset, size},
                 [=] { return real<fn::cuMulticastUnbind>(mcHandle, dev, mcOffset, size); });
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset, void* ptr,
                                   cuuint64_t size, unsigned long long flags) noexcept {
  return bound(endpoint_key(leId), {static_cast<uint64_t>(dev), offset, size},
               use_address(reinterpret_cast<CUdeviceptr>(ptr)),
               [=] { return real<fn::cuLogicalEndpointBindAddr>(leId, dev, offset, ptr, size, flags); });
}
CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset,
                                  CUmemGenericAllocationHandle memHandle, cuuint64_t memOffset,
                                  cuuint64_t size, unsigned long long flags) noexcept {
  return bound(endpoint_key(leId), {static_cast<uint64_t>(dev), offset, size}, use_handle(memHandle), [=] {
    return real<fn::cuLogicalEndpointBindMem>(leId, dev, offset, memHandle, memOffset, size, flags);
  });
}
CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset,
                                 cuuint64_t size) noexcept {
  return unbound(endpoint_key(leId), {static_cast<uint64_t>(dev), offset, size},
                 [=] { return real<fn::cuLogicalEndpointUnbind>(leId, dev, offset, size); });
}
CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId leId) noexcept {
  const InFlightOnAll in_flight;
  const CUresult result = real<fn::cuLogicalEndpointDestroy>(leId);
  if (result == CUDA_SUCCESS) unbind_all(endpoint_key(leId));
  return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo* mapInfoList, unsigned int count, CUstream hStream) noexcept {
  return mapped_tiles(mapInfoList, count,
                      [=] { return real<fn::cuMemMapArrayAsync>(mapInfoList, count, hStream); });
}
CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* mapInfoList, unsigned int count, CUstream hStream) noexcept {
  return mapped_tiles(mapInfoList, count,
                      [=] { return real<fn::cuMemMapArrayAsync_ptsz>(mapInfoList, count, hStream); });
}

}  // namespace hook
