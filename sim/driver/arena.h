// SPDX-License-Identifier: Apache-2.0
//
// The address space that device memory lies in, and the host memory behind it. One sparse memory file per
// process, mapped once and whole; a page costs host memory only once it is written. A device pointer is a
// host pointer.
//
// It is a file so that memory can be mapped a second time (cuMemMap) and by another process (IPC, exported
// handles). Ranges are multiples of kGranule. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sim {

constexpr uint64_t kGranule = 2ull << 20;  // what the device hands out

constexpr uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// 0: the address space is used up.
uint64_t arena_allocate(uint64_t bytes);
// The pages go back to the host; the range reads as zeros when it is allocated again.
void arena_release(uint64_t address, uint64_t bytes);
bool in_arena(uint64_t address);

// Makes [at, at + bytes) show the arena's memory at `address`, without access rights.
bool arena_map_alias(uint64_t address, uint64_t at, uint64_t bytes);

// Where the memory is for another process: the file and the position in it.
struct ArenaFile {
  int fd;  // -1: this process' arena has no file
  uint64_t offset;
};
ArenaFile arena_file(uint64_t address);

}  // namespace sim
