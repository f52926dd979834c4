// SPDX-License-Identifier: Apache-2.0
//
// Memory and semaphores of another API or process, named by a file descriptor. Memory is what
// cuMemExportToShareableHandle exported, or any file that can be mapped, which stands for a graphics API's;
// whoever exported it has taken it from the device, so the importer takes nothing. A semaphore's file holds
// its value as 64 bits: a timeline that only grows, or, of a binary one, 1 while it is signalled.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "sim/driver/arrays.h"
#include "sim/driver/memory.h"
#include "sim/driver/stream.h"
#include "sim/driver/vmm.h"

namespace sim {
namespace {

struct FileMapping {
  uint64_t base, bytes;
  int node_device = 0;
  uint64_t shared_key = 0;  // of an exported handle's memory, which this holds
  FileMapping(uint64_t base, uint64_t bytes) : base(base), bytes(bytes) {}
  explicit FileMapping(const SharedMemory& shared)
      : base(shared.base),
        bytes(shared.bytes),
        node_device(sim::node_device(shared.device)),
        shared_key(shared.key) {}
  ~FileMapping() {
    munmap(reinterpret_cast<void*>(base), bytes);
    if (shared_key != 0) Node::get().let_shared_memory_go(node_device, shared_key);
  }
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
};
using FileMappingPtr = std::shared_ptr<const FileMapping>;

FileMappingPtr map_file(int fd, uint64_t bytes) {
  struct stat status;
  if (bytes == 0 || fstat(fd, &status) != 0 || static_cast<uint64_t>(status.st_size) < bytes) return nullptr;
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (mapping == MAP_FAILED) return nullptr;
  return std::make_shared<const FileMapping>(reinterpret_cast<uint64_t>(mapping), bytes);
}

}  // namespace
}  // namespace sim

struct CUextMemory_st {
  static constexpr uint32_t kMagic = 0x65786d31;
  uint32_t magic = kMagic;
  CUctx_st* context;
  sim::FileMappingPtr mapping;
};

struct CUextSemaphore_st {
  static constexpr uint32_t kMagic = 0x65787331;
  uint32_t magic = kMagic;
  bool timeline;
  sim::FileMappingPtr mapping;
};

namespace sim {
namespace {

bool is_external(CUexternalMemory memory) {
  return memory != nullptr && memory->magic == CUextMemory_st::kMagic;
}

bool is_semaphore(CUexternalSemaphore semaphore) {
  return semaphore != nullptr && semaphore->magic == CUextSemaphore_st::kMagic;
}

bool is_within(const FileMapping& mapping, uint64_t offset, uint64_t bytes) {
  return bytes != 0 && offset <= mapping.bytes && bytes <= mapping.bytes - offset;
}

// Checks all before the first has an effect.
CUresult check_semaphores(const CUexternalSemaphore* semaphores, const void* params, unsigned count) {
  if (semaphores == nullptr || params == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (!is_semaphore(semaphores[i])) return CUDA_ERROR_INVALID_HANDLE;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_API(cuImportExternalMemory)(CUexternalMemory* result, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* desc) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  constexpr unsigned kFlags = CUDA_EXTERNAL_MEMORY_DEDICATED;
  if (result == nullptr || desc == nullptr || desc->size == 0 || (desc->flags & ~kFlags) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
  sim::FileMappingPtr mapping;
  sim::SharedMemory shared;
  if (sim::map_shared(desc->handle.fd, &shared) == CUDA_SUCCESS) {
    mapping = std::make_shared<const sim::FileMapping>(shared);
    if (desc->size > shared.bytes) return CUDA_ERROR_INVALID_VALUE;
  } else {
    mapping = sim::map_file(desc->handle.fd, desc->size);
    if (mapping == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  }
  close(desc->handle.fd);  // a successful import has it from then on
  *result = new CUextMemory_st{.context = context->owner, .mapping = std::move(mapping)};
  return CUDA_SUCCESS;
}

SIM_API(cuExternalMemoryGetMappedBuffer)
(CUdeviceptr* result, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* desc) {
  if (CUresult error = sim::ready()) return error;
  if (!sim::is_external(memory)) return CUDA_ERROR_INVALID_HANDLE;
  if (result == nullptr || desc == nullptr || desc->flags != 0 ||
      !sim::is_within(*memory->mapping, desc->offset, desc->size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  sim::Allocation allocation;
  allocation.base = memory->mapping->base + desc->offset;
  if (sim::allocation_at(allocation.base)) return CUDA_ERROR_INVALID_VALUE;  // mapped already
  allocation.size = allocation.backing = desc->size;
  allocation.kind = sim::Allocation::Kind::kExternal;
  allocation.charged = false;
  allocation.device = memory->context->device;
  allocation.context = memory->context;
  allocation.keeps = memory->mapping;
  sim::remember(allocation);
  *result = allocation.base;
  return CUDA_SUCCESS;
}

SIM_API(cuExternalMemoryGetMappedMipmappedArray)
(CUmipmappedArray* mipmap, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* desc) {
  if (CUresult error = sim::ready()) return error;
  if (!sim::is_external(memory)) return CUDA_ERROR_INVALID_HANDLE;
  if (mipmap == nullptr || desc == nullptr || desc->offset >= memory->mapping->bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return sim::mipmap_in(mipmap, desc->arrayDesc, desc->numLevels, memory->mapping->base + desc->offset,
                        memory->mapping->bytes - desc->offset, memory->mapping);
}

// What is mapped of it stays usable here; to the driver that is undefined.
SIM_API(cuDestroyExternalMemory)(CUexternalMemory memory) {
  if (CUresult error = sim::ready()) return error;
  if (!sim::is_external(memory)) return CUDA_ERROR_INVALID_HANDLE;
  memory->magic = 0;
  delete memory;
  return CUDA_SUCCESS;
}

SIM_API(cuImportExternalSemaphore)
(CUexternalSemaphore* result, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* desc) {
  CUctx_st* context;
  if (CUresult error = sim::current_context(&context)) return error;
  if (result == nullptr || desc == nullptr || desc->flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool timeline = desc->type == CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
  if (!timeline && desc->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
  sim::FileMappingPtr mapping = sim::map_file(desc->handle.fd, sizeof(uint64_t));
  if (mapping == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  close(desc->handle.fd);
  *result = new CUextSemaphore_st{.timeline = timeline, .mapping = std::move(mapping)};
  return CUDA_SUCCESS;
}

SIM_API(cuSignalExternalSemaphoresAsync)
(const CUexternalSemaphore* semaphores, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS* params, unsigned count,
 CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (CUresult error = sim::check_semaphores(semaphores, params, count)) return error;
  for (unsigned i = 0; i < count; ++i) {
    const uint64_t value = semaphores[i]->timeline ? params[i].params.fence.value : 1;
    const sim::WriteValue write{semaphores[i]->mapping->base, value, true};
    if (CUresult error = sim::perform(stream, write)) return error;
  }
  return CUDA_SUCCESS;
}

SIM_API(cuWaitExternalSemaphoresAsync)
(const CUexternalSemaphore* semaphores, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS* params, unsigned count,
 CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = sim::find_stream(handle, &stream)) return error;
  if (CUresult error = sim::check_semaphores(semaphores, params, count)) return error;
  for (unsigned i = 0; i < count; ++i) {
    const bool timeline = semaphores[i]->timeline;
    const uint64_t address = semaphores[i]->mapping->base;
    const uint64_t value = timeline ? params[i].params.fence.value : 1;
    const sim::WaitValue wait{address, value, CU_STREAM_WAIT_VALUE_GEQ, true};
    if (CUresult error = sim::perform(stream, wait)) return error;
    // A wait uses a binary semaphore's signal up.
    if (timeline) continue;
    if (CUresult error = sim::perform(stream, sim::WriteValue{address, 0, true})) return error;
  }
  return CUDA_SUCCESS;
}

SIM_API(cuDestroyExternalSemaphore)(CUexternalSemaphore semaphore) {
  if (CUresult error = sim::ready()) return error;
  if (!sim::is_semaphore(semaphore)) return CUDA_ERROR_INVALID_HANDLE;
  semaphore->magic = 0;
  delete semaphore;
  return CUDA_SUCCESS;
}
