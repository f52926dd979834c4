// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <mutex>

#include "sim/driver/block_heap.h"

namespace sim {
namespace {

constexpr uint64_t kLargestArena = 16ull << 40;
constexpr uint64_t kSmallestArena = 256ull << 30;

struct Arena {
  std::mutex mutex;
  BlockHeap heap;
  uint64_t base = 0;
  uint64_t size = 0;
  int fd = -1;

  Arena() {
    // A limit on file sizes would kill the process at ftruncate; without a file only sharing is lost.
    rlimit file_size{};
    const bool file_allowed = getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur == RLIM_INFINITY;
    if (file_allowed) fd = high_descriptor(memfd_create("simulated-vram", MFD_CLOEXEC));
    for (size = kLargestArena; size >= kSmallestArena; size /= 2) {
      if (fd >= 0 && ftruncate(fd, static_cast<off_t>(size)) != 0) continue;
      const int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
      void* mapping = mmap(nullptr, size + kGranule, PROT_READ | PROT_WRITE, flags, fd, 0);
      if (mapping == MAP_FAILED) continue;
      // The first granule stays unused where the mapping is not aligned, so that offsets remain file offsets.
      base = reinterpret_cast<uint64_t>(mapping);
      const uint64_t first = round_up(base, kGranule);
      heap.add_block({first, (base + size - first) / kGranule * kGranule});
      return;
    }
    size = 0;
  }

  // Out of the way of programs that count on low numbers or close them all in a loop from 3 up to some
  // hundred.
  static int high_descriptor(int low) {
    if (low < 0) return -1;
    const int high = fcntl(low, F_DUPFD_CLOEXEC, 900);
    if (high < 0) return low;
    close(low);
    return high;
  }
};

Arena& arena() {
  static Arena& instance = *new Arena;
  return instance;
}

}  // namespace

uint64_t arena_allocate(uint64_t bytes) {
  Arena& a = arena();
  std::lock_guard lock(a.mutex);
  return a.heap.allocate(bytes);
}

void arena_release(uint64_t address, uint64_t bytes) {
  Arena& a = arena();
  madvise(reinterpret_cast<void*>(address), bytes, MADV_REMOVE);
  std::lock_guard lock(a.mutex);
  a.heap.release(address, bytes);
}

bool in_arena(uint64_t address) {
  const Arena& a = arena();
  return address >= a.base && address < a.base + a.size;
}

bool arena_map_alias(uint64_t address, uint64_t at, uint64_t bytes) {
  // Old size 0: a second mapping of the same shared pages, which needs no file descriptor.
  void* alias = mremap(reinterpret_cast<void*>(address), 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                       reinterpret_cast<void*>(at));
  if (alias == MAP_FAILED) return false;
  return mprotect(alias, bytes, PROT_NONE) == 0;
}

ArenaFile arena_file(uint64_t address) {
  const Arena& a = arena();
  return {a.fd, address - a.base};
}

}  // namespace sim
