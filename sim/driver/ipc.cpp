// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/ipc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "sim/driver/arena.h"

namespace sim {
namespace {

constexpr uint64_t kPage = 4096;

struct MemoryHandle {
  static constexpr uint32_t kMagic = 0x69706331;
  uint32_t magic;
  SharedRange range;
};
static_assert(sizeof(MemoryHandle) <= sizeof(CUipcMemHandle));

uint64_t inode_of(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

CUresult share_range(uint64_t address, uint64_t bytes, SharedRange* range) {
  const ArenaFile file = arena_file(address);
  if (file.fd < 0) return CUDA_ERROR_NOT_SUPPORTED;
  *range = {getpid(), file.fd, inode_of(file.fd), file.offset, bytes};
  return CUDA_SUCCESS;
}

CUresult map_range(const SharedRange& range, void** mapping) {
  if (range.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // as the driver
  const std::string path = "/proc/" + std::to_string(range.pid) + "/fd/" + std::to_string(range.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_MAP_FAILED;
  const uint64_t before = range.offset % kPage;
  void* start = MAP_FAILED;
  if (inode_of(fd) == range.inode) {
    start = mmap(nullptr, before + range.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                 static_cast<off_t>(range.offset - before));
  }
  close(fd);
  if (start == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
  *mapping = static_cast<char*>(start) + before;
  return CUDA_SUCCESS;
}

void unmap_range(void* mapping, uint64_t bytes) {
  const uint64_t before = reinterpret_cast<uint64_t>(mapping) % kPage;
  munmap(static_cast<char*>(mapping) - before, before + bytes);
}

void close_imported_memory(const Allocation& allocation) {
  unmap_range(reinterpret_cast<void*>(allocation.base), allocation.size);
}

}  // namespace sim

SIM_API(cuIpcGetMemHandle)(CUipcMemHandle* opaque, CUdeviceptr address) {
  if (CUresult error = sim::ready()) return error;
  const auto allocation = sim::find_allocation(address);
  if (opaque == nullptr || !allocation) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->kind != sim::Allocation::Kind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  sim::MemoryHandle handle{sim::MemoryHandle::kMagic, {}};
  if (CUresult error = sim::share_range(allocation->base, allocation->size, &handle.range)) return error;
  memset(opaque, 0, sizeof *opaque);
  memcpy(opaque, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

SIM_API(cuIpcOpenMemHandle_v2)(CUdeviceptr* address, CUipcMemHandle opaque, unsigned) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  sim::MemoryHandle handle;
  memcpy(&handle, &opaque, sizeof handle);
  if (address == nullptr || handle.magic != sim::MemoryHandle::kMagic) return CUDA_ERROR_INVALID_VALUE;
  void* mapping;
  if (CUresult error = sim::map_range(handle.range, &mapping)) return error;
  sim::Allocation allocation;
  allocation.base = reinterpret_cast<uint64_t>(mapping);
  allocation.size = handle.range.bytes;
  allocation.kind = sim::Allocation::Kind::kImported;
  allocation.device = context->device;
  allocation.context = context->owner;
  sim::remember(allocation);
  *address = allocation.base;
  return CUDA_SUCCESS;
}
SIM_API(cuIpcOpenMemHandle)(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return sim_cuIpcOpenMemHandle_v2(address, handle, flags);
}

SIM_API(cuIpcCloseMemHandle)(CUdeviceptr address) {
  if (CUresult error = sim::ready()) return error;
  const auto found = sim::allocation_at(address);
  if (!found || found->kind != sim::Allocation::Kind::kImported) return CUDA_ERROR_INVALID_VALUE;
  if (const auto allocation = sim::forget(address)) sim::close_imported_memory(*allocation);
  return CUDA_SUCCESS;
}
