// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/block_heap.h"

namespace sim {

void BlockHeap::add_block(Block block) {
  blocks_.emplace(block.base, block.size);
  add_free(block.base, block.size);
}

uint64_t BlockHeap::allocate(uint64_t size) {
  const auto fit = free_sizes_.lower_bound({size, 0});
  if (fit == free_sizes_.end()) return 0;
  const auto [piece_size, address] = *fit;
  remove_free(free_.find(address));
  if (piece_size > size) add_free(address + size, piece_size - size);
  return address;
}

bool BlockHeap::release(uint64_t address, uint64_t size) {
  const Block block = block_of(address);
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + size && next->first < block.base + block.size) {
    size += next->second;
    remove_free(next);
  }
  auto previous = free_.lower_bound(address);
  if (previous != free_.begin()) {
    --previous;
    if (previous->first >= block.base && previous->first + previous->second == address) {
      address = previous->first;
      size += previous->second;
      remove_free(previous);
    }
  }
  add_free(address, size);
  return size == block.size;
}

void BlockHeap::remove_block(uint64_t base) {
  remove_free(free_.find(base));
  blocks_.erase(base);
}

BlockHeap::Block BlockHeap::block_of(uint64_t address) const {
  auto block = blocks_.upper_bound(address);
  --block;
  return {block->first, block->second};
}

std::vector<BlockHeap::Block> BlockHeap::free_blocks() const {
  std::vector<Block> result;
  for (const auto& [base, size] : blocks_) {
    const auto piece = free_.find(base);
    if (piece != free_.end() && piece->second == size) result.push_back({base, size});
  }
  return result;
}

std::vector<BlockHeap::Block> BlockHeap::all_blocks() const {
  std::vector<Block> result;
  for (const auto& [base, size] : blocks_) result.push_back({base, size});
  return result;
}

void BlockHeap::clear() {
  blocks_.clear();
  free_.clear();
  free_sizes_.clear();
}

void BlockHeap::add_free(uint64_t address, uint64_t size) {
  free_.emplace(address, size);
  free_sizes_.emplace(size, address);
}

void BlockHeap::remove_free(std::map<uint64_t, uint64_t>::iterator piece) {
  free_sizes_.erase({piece->second, piece->first});
  free_.erase(piece);
}

}  // namespace sim
