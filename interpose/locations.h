// SPDX-License-Identifier: Apache-2.0
//
// Where memory is asked to lie: a device, a part of one, or the host.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

namespace hook {

constexpr CUdevice kNoDevice = -1;  // memory of the host, or of another process, which was charged for it

// CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN; the headers have it since CUDA 13.5.
constexpr auto kLocalityDomain = static_cast<CUmemLocationType>(6);

constexpr bool is_on_device(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE || location.type == kLocalityDomain;
}

// Preconditions: is_on_device(). The number of a domain's device is the id's first byte.
constexpr CUdevice device_of(const CUmemLocation& location) {
  return location.type == kLocalityDomain ? location.id & 0xff : location.id;
}

}  // namespace hook
