// SPDX-License-Identifier: Apache-2.0
//
// Takes device memory until it is refused, by each of the ways that CUDA has.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <functional>
#include <memory>

#include "support.h"

namespace samples {

// One way to take device memory. The driver's codes and the runtime's are the same numbers where both have
// one, so either is kept as an int: 0 is success, 2 is out of memory.
class Taker {
 public:
  virtual ~Taker() = default;
  virtual int take(uint64_t bytes) = 0;
  virtual void give_all() = 0;
};

constexpr int kOutOfMemory = 2;
static_assert(kOutOfMemory == cudaErrorMemoryAllocation && kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
constexpr uint64_t kSmallestChunk = 2 * kMiB;

namespace takers {

// The error is this call's own: the runtime would report it once more from the next launch.
inline int result_of(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

class Malloc : public Taker {
 public:
  int take(uint64_t bytes) override {
    void* memory = nullptr;
    const int error = take_one(bytes, &memory);
    if (error == 0) taken_.push_back(memory);
    return error;
  }
  void give_all() override {
    for (void* memory : taken_) CHECK(cudaFree(memory));
    taken_.clear();
  }

 private:
  virtual int take_one(uint64_t bytes, void** memory) { return result_of(cudaMalloc(memory, bytes)); }
  std::vector<void*> taken_;
};

class Pitch : public Malloc {
  int take_one(uint64_t bytes, void** memory) override {
    constexpr uint64_t kRowBytes = 64 << 10;
    size_t pitch = 0;
    return result_of(cudaMallocPitch(memory, &pitch, kRowBytes, bytes / kRowBytes));
  }
};

class Managed : public Malloc {
  int take_one(uint64_t bytes, void** memory) override { return result_of(cudaMallocManaged(memory, bytes)); }
};

// From the device's own pool, or from one that is made for it.
class Pool : public Taker {
 public:
  explicit Pool(bool own) : own_(own) {
    int device = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaStreamCreate(&stream_));
    if (own_) {
      cudaMemPoolProps properties = {};
      properties.allocType = cudaMemAllocationTypePinned;
      properties.location.type = cudaMemLocationTypeDevice;
      properties.location.id = device;
      CHECK(cudaMemPoolCreate(&pool_, &properties));
    } else {
      CHECK(cudaDeviceGetDefaultMemPool(&pool_, device));
    }
  }
  ~Pool() override {
    CHECK(cudaStreamDestroy(stream_));
    if (own_) CHECK(cudaMemPoolDestroy(pool_));
  }
  int take(uint64_t bytes) override {
    void* memory = nullptr;
    const int error = result_of(own_ ? cudaMallocFromPoolAsync(&memory, bytes, pool_, stream_)
                                     : cudaMallocAsync(&memory, bytes, stream_));
    if (error == 0) taken_.push_back(memory);
    return error;
  }
  void give_all() override {
    for (void* memory : taken_) CHECK(cudaFreeAsync(memory, stream_));
    taken_.clear();
    CHECK(cudaStreamSynchronize(stream_));
    CHECK(cudaMemPoolTrimTo(pool_, 0));
  }

 private:
  const bool own_;
  cudaStream_t stream_;
  cudaMemPool_t pool_;
  std::vector<void*> taken_;
};

// Physical memory by cuMemCreate, mapped so that it could be used. The functions come from the runtime's
// lookup, as in programs that don't link with libcuda.
class Vmm : public Taker {
 public:
  Vmm() {
    find("cuMemCreate", 10020, &create_);
    find("cuMemRelease", 10020, &release_);
    find("cuMemAddressReserve", 10020, &reserve_);
    find("cuMemAddressFree", 10020, &free_);
    find("cuMemMap", 10020, &map_);
    find("cuMemUnmap", 10020, &unmap_);
    find("cuMemSetAccess", 10020, &set_access_);
    int device = 0;
    CHECK(cudaGetDevice(&device));
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  }
  int take(uint64_t bytes) override {
    Chunk chunk = {};
    chunk.bytes = bytes;
    if (const int error = create_(&chunk.handle, bytes, &properties_, 0)) return error;
    const CUmemAccessDesc access = {properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT(reserve_(&chunk.address, bytes, 0, 0, 0) == CUDA_SUCCESS);
    EXPECT(map_(chunk.address, bytes, 0, chunk.handle, 0) == CUDA_SUCCESS);
    EXPECT(set_access_(chunk.address, bytes, &access, 1) == CUDA_SUCCESS);
    taken_.push_back(chunk);
    return 0;
  }
  void give_all() override {
    for (const Chunk& chunk : taken_) {
      // The handle goes first: the memory is the mapping's until that goes too.
      EXPECT(release_(chunk.handle) == CUDA_SUCCESS);
      EXPECT(unmap_(chunk.address, chunk.bytes) == CUDA_SUCCESS);
      EXPECT(free_(chunk.address, chunk.bytes) == CUDA_SUCCESS);
    }
    taken_.clear();
  }

 private:
  struct Chunk {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    uint64_t bytes;
  };

  template <typename Function>
  static void find(const char* name, unsigned version, Function* function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status));
    EXPECT(status == cudaDriverEntryPointSuccess && found != nullptr);
    *function = reinterpret_cast<Function>(found);
  }

  PFN_cuMemCreate_v10020 create_;
  PFN_cuMemRelease_v10020 release_;
  PFN_cuMemAddressReserve_v10020 reserve_;
  PFN_cuMemAddressFree_v10020 free_;
  PFN_cuMemMap_v10020 map_;
  PFN_cuMemUnmap_v10020 unmap_;
  PFN_cuMemSetAccess_v10020 set_access_;
  CUmemAllocationProp properties_ = {};
  std::vector<Chunk> taken_;
};

// Rows of 8192 texels of 16 bytes: 128 KiB each.
constexpr uint64_t kTexelBytes = sizeof(float4);
constexpr uint64_t kRowTexels = 8192;

class Array : public Taker {
 public:
  int take(uint64_t bytes) override {
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<float4>();
    cudaArray_t array = nullptr;
    const int error =
        result_of(cudaMallocArray(&array, &format, kRowTexels, bytes / (kRowTexels * kTexelBytes)));
    if (error == 0) taken_.push_back(array);
    return error;
  }
  void give_all() override {
    for (cudaArray_t array : taken_) CHECK(cudaFreeArray(array));
    taken_.clear();
  }

 private:
  std::vector<cudaArray_t> taken_;
};

// Two levels: the second has a quarter of the texels of the first, and together they are the size asked for.
class Mipmap : public Taker {
 public:
  int take(uint64_t bytes) override {
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<float4>();
    const cudaExtent extent = make_cudaExtent(kRowTexels, bytes / (kRowTexels * kTexelBytes) * 4 / 5, 0);
    cudaMipmappedArray_t mipmap = nullptr;
    const int error = result_of(cudaMallocMipmappedArray(&mipmap, &format, extent, 2));
    if (error == 0) taken_.push_back(mipmap);
    return error;
  }
  void give_all() override {
    for (cudaMipmappedArray_t mipmap : taken_) CHECK(cudaFreeMipmappedArray(mipmap));
    taken_.clear();
  }

 private:
  std::vector<cudaMipmappedArray_t> taken_;
};

}  // namespace takers

struct Api {
  const char* name;
  std::unique_ptr<Taker> (*make)();
};

inline const std::vector<Api>& apis() {
  static const std::vector<Api> all = {
      {"malloc", [] { return std::unique_ptr<Taker>(new takers::Malloc); }},
      {"pitch", [] { return std::unique_ptr<Taker>(new takers::Pitch); }},
      {"managed", [] { return std::unique_ptr<Taker>(new takers::Managed); }},
      {"async", [] { return std::unique_ptr<Taker>(new takers::Pool(false)); }},
      {"pool", [] { return std::unique_ptr<Taker>(new takers::Pool(true)); }},
      {"vmm", [] { return std::unique_ptr<Taker>(new takers::Vmm); }},
      {"array", [] { return std::unique_ptr<Taker>(new takers::Array); }},
      {"mipmap", [] { return std::unique_ptr<Taker>(new takers::Mipmap); }},
  };
  return all;
}

struct Taken {
  uint64_t bytes = 0;
  int error = 0;  // of the last refusal; 0: never refused, and stopped at the limit given
};

// Asks for less and less, down to the smallest chunk. Any error but "out of memory" ends it.
inline Taken take_until_refused(Taker* taker, uint64_t first_chunk_bytes, uint64_t limit_bytes) {
  Taken taken;
  for (uint64_t chunk = first_chunk_bytes; chunk >= kSmallestChunk;) {
    if (taken.bytes + chunk > limit_bytes) return {taken.bytes, 0};
    if (const int error = taker->take(chunk)) {
      taken.error = error;
      if (error != kOutOfMemory) break;
      chunk /= 2;
    } else {
      taken.bytes += chunk;
    }
  }
  return taken;
}

}  // namespace samples
