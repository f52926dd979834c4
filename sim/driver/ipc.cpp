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

struct IpcMemory {
  static constexpr uint32_t kMagic = 0x69706331;
  uint32_t magic;
  int32_t pid;
  int32_t fd;
  int32_t device;
  uint64_t inode;  // that the process still has the same file under this number
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(IpcMemory) <= sizeof(CUipcMemHandle));

uint64_t inode_of(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

void close_imported_memory(const Allocation& allocation) {
  const uint64_t start = allocation.base / kPage * kPage;
  munmap(reinterpret_cast<void*>(start), allocation.base + allocation.size - start);
}

}  // namespace sim

SIM_API(cuIpcGetMemHandle)(CUipcMemHandle* handle, CUdeviceptr address) {
  if (CUresult error = sim::ready()) return error;
  const auto allocation = sim::find_allocation(address);
  if (handle == nullptr || !allocation) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->kind != sim::Allocation::Kind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  const sim::ArenaFile file = sim::arena_file(allocation->base);
  if (file.fd < 0) return CUDA_ERROR_NOT_SUPPORTED;
  const sim::IpcMemory memory{sim::IpcMemory::kMagic, getpid(),    file.fd,         allocation->device,
                              sim::inode_of(file.fd), file.offset, allocation->size};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &memory, sizeof memory);
  return CUDA_SUCCESS;
}

SIM_API(cuIpcOpenMemHandle_v2)(CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  sim::IpcMemory memory;
  memcpy(&memory, &handle, sizeof memory);
  if (address == nullptr || memory.magic != sim::IpcMemory::kMagic) return CUDA_ERROR_INVALID_VALUE;
  if (memory.pid == getpid())
    return CUDA_ERROR_INVALID_CONTEXT;  // as the driver: not in the process that made it
  const std::string path = "/proc/" + std::to_string(memory.pid) + "/fd/" + std::to_string(memory.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_MAP_FAILED;
  const uint64_t start = memory.offset / sim::kPage * sim::kPage;
  void* mapping = MAP_FAILED;
  if (sim::inode_of(fd) == memory.inode) {
    mapping = mmap(nullptr, memory.offset + memory.bytes - start, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(start));
  }
  close(fd);
  if (mapping == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
  sim::Allocation allocation;
  allocation.base = reinterpret_cast<uint64_t>(mapping) + (memory.offset - start);
  allocation.size = memory.bytes;
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
