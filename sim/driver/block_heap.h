// SPDX-License-Identifier: Apache-2.0
//
// Carves allocations out of blocks. Best fit, neighbours merge, but never across blocks, so that an empty
// block can be given back whole. Knows addresses only, touches no memory. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace sim {

class BlockHeap {
 public:
  struct Block {
    uint64_t base;
    uint64_t size;
  };

  void add_block(Block block);
  // 0: no free piece is large enough. Preconditions: size > 0, a multiple of the caller's granule.
  uint64_t allocate(uint64_t size);
  // Gives a piece back. True if its whole block is free now.
  bool release(uint64_t address, uint64_t size);
  // Forgets a block that is entirely free.
  void remove_block(uint64_t base);

  Block block_of(uint64_t address) const;
  std::vector<Block> free_blocks() const;
  std::vector<Block> all_blocks() const;
  void clear();

 private:
  void add_free(uint64_t address, uint64_t size);
  void remove_free(std::map<uint64_t, uint64_t>::iterator piece);

  std::map<uint64_t, uint64_t> blocks_;                 // base -> size
  std::map<uint64_t, uint64_t> free_;                   // address -> size
  std::set<std::pair<uint64_t, uint64_t>> free_sizes_;  // (size, address)
};

}  // namespace sim
