// SPDX-License-Identifier: Apache-2.0
//
// The ways that the driver has to take memory of a GPU, each as a Way that takes a piece at a time.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <memory>

#include "support.h"

namespace samples {

// ---- The driver, found as any program finds it -------------------------------------------------------

inline void* driver_function(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  void* const function = library != nullptr ? dlsym(library, name) : nullptr;
  if (function == nullptr) {
    fprintf(stderr, "libcuda.so.1 or its %s is missing: %s\n", name, dlerror());
    exit(1);
  }
  return function;
}

#define NAME_OF(name) #name
#define EXPORT_NAME(name) NAME_OF(name)  // cuda.h means cuMemAlloc_v2 by cuMemAlloc, and so on
#define CU(name) (reinterpret_cast<decltype(&::name)>(::samples::driver_function(EXPORT_NAME(name))))
#define MUST(call) EXPECT((call) == CUDA_SUCCESS)

constexpr uint64_t kPieceBytes = 64 * kMiB;

inline CUdevice device() {
  static const CUdevice first = [] {
    CUdevice found;
    MUST(CU(cuInit)(0));
    MUST(CU(cuDeviceGet)(&found, 0));
    return found;
  }();
  return first;
}

inline void use_primary_context() {
  CUcontext context;
  MUST(CU(cuDevicePrimaryCtxRetain)(&context, device()));
  MUST(CU(cuCtxSetCurrent)(context));
}

inline CUmemLocation on_device() {
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device();
  return location;
}

// ---- Ways ---------------------------------------------------------------------------------------------

class Way {
 public:
  virtual ~Way() = default;
  virtual void begin() { use_primary_context(); }
  virtual CUresult take() = 0;
  virtual void give_all() = 0;
};

namespace driver_ways {

// Pieces that are known by one handle each.
template <typename Handle>
class Pieces : public Way {
 public:
  CUresult take() override {
    Handle handle = {};
    const CUresult result = take_one(&handle);
    if (result == CUDA_SUCCESS) taken_.push_back(handle);
    return result;
  }
  void give_all() override {
    for (auto handle = taken_.rbegin(); handle != taken_.rend(); ++handle) give_one(*handle);
    taken_.clear();
  }

 protected:
  virtual CUresult take_one(Handle* handle) = 0;
  virtual void give_one(Handle handle) = 0;
  const std::vector<Handle>& taken() const { return taken_; }

 private:
  std::vector<Handle> taken_;
};

class Linear : public Pieces<CUdeviceptr> {
  CUresult take_one(CUdeviceptr* address) override { return CU(cuMemAlloc)(address, kPieceBytes); }
  void give_one(CUdeviceptr address) override { MUST(CU(cuMemFree)(address)); }
};

class Small : public Pieces<CUdeviceptr> {
  CUresult take_one(CUdeviceptr* address) override { return CU(cuMemAlloc)(address, 1000 << 10); }
  void give_one(CUdeviceptr address) override { MUST(CU(cuMemFree)(address)); }
};

class Pitch : public Pieces<CUdeviceptr> {
  CUresult take_one(CUdeviceptr* address) override {
    size_t pitch;
    return CU(cuMemAllocPitch)(address, &pitch, 64 << 10, kPieceBytes / (64 << 10), 4);
  }
  void give_one(CUdeviceptr address) override { MUST(CU(cuMemFree)(address)); }
};

class Managed : public Pieces<CUdeviceptr> {
  CUresult take_one(CUdeviceptr* address) override {
    return CU(cuMemAllocManaged)(address, kPieceBytes, CU_MEM_ATTACH_GLOBAL);
  }
  void give_one(CUdeviceptr address) override { MUST(CU(cuMemFree)(address)); }
};

class Host : public Pieces<void*> {
  CUresult take_one(void** address) override { return CU(cuMemHostAlloc)(address, kPieceBytes, 0); }
  void give_one(void* address) override { MUST(CU(cuMemFreeHost)(address)); }
};

class Registered : public Pieces<void*> {
  CUresult take_one(void** address) override {
    *address = mmap(nullptr, kPieceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(*address != MAP_FAILED);
    return CU(cuMemHostRegister)(*address, kPieceBytes, 0);
  }
  void give_one(void* address) override {
    MUST(CU(cuMemHostUnregister)(address));
    munmap(address, kPieceBytes);
  }
};

// Texels of 16 bytes in rows of 128 KiB.
inline CUDA_ARRAY3D_DESCRIPTOR texels(uint64_t bytes, unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR array = {};
  array.Width = 8192;
  array.Height = bytes / (8192 * 16);
  array.Format = CU_AD_FORMAT_FLOAT;
  array.NumChannels = 4;
  array.Flags = flags;
  return array;
}

class Array : public Pieces<CUarray> {
  CUresult take_one(CUarray* array) override {
    const CUDA_ARRAY3D_DESCRIPTOR rows = texels(kPieceBytes, 0);
    const CUDA_ARRAY_DESCRIPTOR plane = {rows.Width, rows.Height, rows.Format, rows.NumChannels};
    return CU(cuArrayCreate)(array, &plane);
  }
  void give_one(CUarray array) override { MUST(CU(cuArrayDestroy)(array)); }
};

class Array3D : public Pieces<CUarray> {
  CUresult take_one(CUarray* array) override {
    CUDA_ARRAY3D_DESCRIPTOR block = texels(kPieceBytes, 0);
    block.Width /= 4;
    block.Depth = 4;
    return CU(cuArray3DCreate)(array, &block);
  }
  void give_one(CUarray array) override { MUST(CU(cuArrayDestroy)(array)); }
};

class Mipmap : public Pieces<CUmipmappedArray> {
  CUresult take_one(CUmipmappedArray* array) override {
    const CUDA_ARRAY3D_DESCRIPTOR base = texels(kPieceBytes, 0);
    return CU(cuMipmappedArrayCreate)(array, &base, 3);
  }
  void give_one(CUmipmappedArray array) override { MUST(CU(cuMipmappedArrayDestroy)(array)); }
};

// ---- Pools and graphs

class Stream : public Pieces<CUdeviceptr> {
 public:
  void begin() override {
    Pieces::begin();
    MUST(CU(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING));
  }

 protected:
  void give_one(CUdeviceptr address) override { MUST(CU(cuMemFreeAsync)(address, stream_)); }
  CUstream stream_;
};

class Async : public Stream {
 public:
  void give_all() override {
    Stream::give_all();
    MUST(CU(cuStreamSynchronize)(stream_));
    CUmemoryPool pool;
    MUST(CU(cuDeviceGetDefaultMemPool)(&pool, device()));
    MUST(CU(cuMemPoolTrimTo)(pool, 0));
  }

 private:
  CUresult take_one(CUdeviceptr* address) override {
    return CU(cuMemAllocAsync)(address, kPieceBytes, stream_);
  }
};

inline CUmemoryPool new_pool() {
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = on_device();
  CUmemoryPool pool;
  MUST(CU(cuMemPoolCreate)(&pool, &props));
  return pool;
}

class OwnPool : public Stream {
 public:
  void begin() override {
    Stream::begin();
    pool_ = new_pool();
  }
  void give_all() override {
    Stream::give_all();
    MUST(CU(cuStreamSynchronize)(stream_));
    MUST(CU(cuMemPoolDestroy)(pool_));
  }

 private:
  CUresult take_one(CUdeviceptr* address) override {
    return CU(cuMemAllocFromPoolAsync)(address, kPieceBytes, pool_, stream_);
  }
  CUmemoryPool pool_;
};

// A pool for each piece: more pools than anybody would think of, each with a little.
class ManyPools : public Stream {
 public:
  void begin() override {
    Stream::begin();
    for (int i = 0; i < 300; ++i) pools_.push_back(new_pool());
  }
  void give_all() override {
    Stream::give_all();
    MUST(CU(cuStreamSynchronize)(stream_));
    for (CUmemoryPool pool : pools_) MUST(CU(cuMemPoolDestroy)(pool));
  }

 private:
  // From the last ones first.
  CUresult take_one(CUdeviceptr* address) override {
    const CUmemoryPool pool = pools_[pools_.size() - 1 - taken().size() % pools_.size()];
    return CU(cuMemAllocFromPoolAsync)(address, 32 * kMiB, pool, stream_);
  }
  std::vector<CUmemoryPool> pools_;
};

// A graph for each piece, which allocates it when it is launched.
struct LaunchedGraph {
  CUgraph graph;
  CUgraphExec executable;
  CUdeviceptr address;
};

class GraphNode : public Pieces<LaunchedGraph> {
 public:
  void begin() override {
    Pieces::begin();
    MUST(CU(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING));
  }
  void give_all() override {
    Pieces::give_all();
    MUST(CU(cuStreamSynchronize)(stream_));
    MUST(CU(cuDeviceGraphMemTrim)(device()));
  }

 protected:
  virtual void make(LaunchedGraph* made) {
    MUST(CU(cuGraphCreate)(&made->graph, 0));
    CUDA_MEM_ALLOC_NODE_PARAMS params = {};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = on_device();
    params.bytesize = kPieceBytes;
    CUgraphNode node;
    MUST(CU(cuGraphAddMemAllocNode)(&node, made->graph, nullptr, 0, &params));
    made->address = params.dptr;
  }
  virtual CUresult run(CUgraphExec executable) { return CU(cuGraphLaunch)(executable, stream_); }
  void give_one(LaunchedGraph made) override {
    free_address(made.address);
    destroy(made);
  }
  virtual void free_address(CUdeviceptr address) { MUST(CU(cuMemFreeAsync)(address, stream_)); }
  CUstream stream_;

 private:
  CUresult take_one(LaunchedGraph* made) override {
    make(made);
    MUST(CU(cuGraphInstantiateWithFlags)(&made->executable, made->graph, 0));
    const CUresult result = run(made->executable);
    if (result != CUDA_SUCCESS) destroy(*made);
    return result;
  }
  static void destroy(const LaunchedGraph& made) {
    MUST(CU(cuGraphExecDestroy)(made.executable));
    MUST(CU(cuGraphDestroy)(made.graph));
  }
};

class CapturedAsync : public GraphNode {
  void make(LaunchedGraph* made) override {
    MUST(CU(cuStreamBeginCapture)(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(CU(cuMemAllocAsync)(&made->address, kPieceBytes, stream_));
    MUST(CU(cuStreamEndCapture)(stream_, &made->graph));
  }
};

// ---- Physical memory

class Physical : public Pieces<CUmemGenericAllocationHandle> {
 public:
  explicit Physical(CUmemLocationType type) : type_(type) {}

 protected:
  CUresult create(CUmemGenericAllocationHandle* handle, CUmemAllocationHandleType exported_as) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = on_device();
    if (type_ != CU_MEM_LOCATION_TYPE_DEVICE) {
      prop.location.type = type_;
      prop.location.id = 0;
    }
    prop.requestedHandleTypes = exported_as;
    return CU(cuMemCreate)(handle, kPieceBytes, &prop, 0);
  }
  CUresult take_one(CUmemGenericAllocationHandle* handle) override {
    return create(handle, CU_MEM_HANDLE_TYPE_NONE);
  }
  void give_one(CUmemGenericAllocationHandle handle) override { MUST(CU(cuMemRelease)(handle)); }

 private:
  const CUmemLocationType type_;
};

// Memory that only its mapping keeps.
class Mapped : public Pieces<CUdeviceptr> {
  CUresult take_one(CUdeviceptr* address) override {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = on_device();
    CUmemGenericAllocationHandle handle;
    if (const CUresult refused = CU(cuMemCreate)(&handle, kPieceBytes, &prop, 0)) return refused;
    MUST(CU(cuMemAddressReserve)(address, kPieceBytes, 0, 0, 0));
    MUST(CU(cuMemMap)(*address, kPieceBytes, 0, handle, 0));
    MUST(CU(cuMemRelease)(handle));
    return CUDA_SUCCESS;
  }
  void give_one(CUdeviceptr address) override {
    MUST(CU(cuMemUnmap)(address, kPieceBytes));
    MUST(CU(cuMemAddressFree)(address, kPieceBytes));
  }
};

// Memory that only the tiles of a sparse array keep.
class SparseTiles : public Pieces<CUarray> {
  CUresult take_one(CUarray* array) override {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = on_device();
    prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    CUmemGenericAllocationHandle handle;
    if (const CUresult refused = CU(cuMemCreate)(&handle, kPieceBytes, &prop, 0)) return refused;
    const CUDA_ARRAY3D_DESCRIPTOR rows = texels(kPieceBytes, CUDA_ARRAY3D_SPARSE);
    MUST(CU(cuArray3DCreate)(array, &rows));
    CUarrayMapInfo map = {};
    map.resourceType = CU_RESOURCE_TYPE_ARRAY;
    map.resource.array = *array;
    map.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    map.subresource.sparseLevel.extentWidth = static_cast<unsigned>(rows.Width);
    map.subresource.sparseLevel.extentHeight = static_cast<unsigned>(rows.Height);
    map.subresource.sparseLevel.extentDepth = 1;
    map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    map.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    map.memHandle.memHandle = handle;
    map.deviceBitMask = 1u << device();
    MUST(CU(cuMemMapArrayAsync)(&map, 1, nullptr));
    MUST(CU(cuMemRelease)(handle));
    return CUDA_SUCCESS;
  }
  void give_one(CUarray array) override { MUST(CU(cuArrayDestroy)(array)); }
};

// Memory that only a multicast object keeps.
class Multicast : public Pieces<CUmemGenericAllocationHandle> {
  CUresult take_one(CUmemGenericAllocationHandle* object) override {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = on_device();
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle;
    if (const CUresult refused = CU(cuMemCreate)(&handle, kPieceBytes, &prop, 0)) return refused;
    CUmulticastObjectProp team = {};
    team.numDevices = 1;
    team.size = kPieceBytes;
    team.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    MUST(CU(cuMulticastCreate)(object, &team));
    MUST(CU(cuMulticastAddDevice)(*object, device()));
    MUST(CU(cuMulticastBindMem)(*object, 0, handle, 0, kPieceBytes, 0));
    MUST(CU(cuMemRelease)(handle));
    return CUDA_SUCCESS;
  }
  void give_one(CUmemGenericAllocationHandle object) override {
    MUST(CU(cuMulticastUnbind)(object, device(), 0, kPieceBytes));
    MUST(CU(cuMemRelease)(object));
  }
};

// ---- What the driver takes behind a call

class Module : public Pieces<CUmodule> {
 public:
  explicit Module(const std::string& path) : path_(path) {}

 private:
  CUresult take_one(CUmodule* module) override {
    if (const CUresult refused = CU(cuModuleLoad)(module, path_.c_str())) return refused;
    CUdeviceptr address;
    size_t bytes;
    const CUresult result = CU(cuModuleGetGlobal)(&address, &bytes, *module, "big_variable");
    if (result != CUDA_SUCCESS) give_one(*module);
    return result;
  }
  void give_one(CUmodule module) override { MUST(CU(cuModuleUnload)(module)); }
  const std::string path_;
};

// The first piece is the context that every other way has already.
class Context : public Pieces<CUcontext> {
 public:
  void begin() override { device(); }

 private:
  CUresult take_one(CUcontext* context) override {
    if (taken().empty()) {
      const CUresult result = CU(cuDevicePrimaryCtxRetain)(context, device());
      return result;
    }
    return CU(cuCtxCreate)(context, nullptr, 0, device());
  }
  void give_one(CUcontext context) override {
    if (context == taken().front()) {
      MUST(CU(cuDevicePrimaryCtxRelease)(device()));
    } else {
      MUST(CU(cuCtxDestroy)(context));
    }
  }
};

class GreenContext : public Pieces<CUgreenCtx> {
  CUresult take_one(CUgreenCtx* green) override {
    CUdevResource whole, part, rest;
    unsigned groups = 1;
    CUdevResourceDesc description;
    MUST(CU(cuDeviceGetDevResource)(device(), &whole, CU_DEV_RESOURCE_TYPE_SM));
    MUST(CU(cuDevSmResourceSplitByCount)(&part, &groups, &whole, &rest, 0, 8));
    MUST(CU(cuDevResourceGenerateDesc)(&description, &part, 1));
    return CU(cuGreenCtxCreate)(green, description, device(), CU_GREEN_CTX_DEFAULT_STREAM);
  }
  void give_one(CUgreenCtx green) override { MUST(CU(cuGreenCtxDestroy)(green)); }
};

// A buffer of the context, whose size is a limit.
class Limit : public Way {
 public:
  Limit(CUlimit limit, size_t step) : limit_(limit), step_(step) {}
  void begin() override {
    Way::begin();
    MUST(CU(cuCtxGetLimit)(&first_, limit_));
    value_ = first_;
  }
  CUresult take() override {
    const CUresult result = CU(cuCtxSetLimit)(limit_, value_ + step_);
    if (result == CUDA_SUCCESS) value_ += step_;
    return result;
  }
  void give_all() override { MUST(CU(cuCtxSetLimit)(limit_, first_)); }

 private:
  const CUlimit limit_;
  const size_t step_;
  size_t first_ = 0;
  size_t value_ = 0;
};

}  // namespace driver_ways

}  // namespace samples
