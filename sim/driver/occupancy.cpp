// SPDX-License-Identifier: Apache-2.0
//
// Occupancy: how many blocks fit. Libraries refuse kernels for which the answer is 0.
#include <algorithm>

#include "sim/driver/launch.h"

namespace sim {
namespace {

CUresult check(CUfunction function, CUctx_st** context) {
  if (CUresult error = current_context(context)) return error;
  return is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

int sm_count(CUctx_st* context) {
  return context->partition.number != 0 ? static_cast<int>(context->partition.sms)
                                        : device_model(context->device).sm_count;
}

int shared_limit(CUctx_st* context) { return device_model(context->device).shared_per_block_optin_bytes; }

}  // namespace
}  // namespace sim

SIM_API(cuOccupancyMaxActiveBlocksPerMultiprocessor)
(int* blocks, CUfunction function, int block_threads, size_t shared_bytes) {
  CUctx_st* context;
  if (CUresult error = sim::check(function, &context)) return error;
  if (blocks == nullptr || block_threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = sim::blocks_per_sm(*function, context->device, block_threads, shared_bytes);
  return CUDA_SUCCESS;
}

SIM_API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
(int* blocks, CUfunction function, int block_threads, size_t shared_bytes, unsigned) {
  return sim_cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_threads, shared_bytes);
}

SIM_API(cuOccupancyMaxPotentialBlockSizeWithFlags)
(int* min_grid, int* block_size, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared_bytes,
 int limit, unsigned) {
  CUctx_st* context;
  if (CUresult error = sim::check(function, &context)) return error;
  if (min_grid == nullptr || block_size == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int most = limit > 0 ? std::min(limit, 1024) : 1024;
  int best_threads = 0;
  *min_grid = 0;
  *block_size = 0;
  for (int threads = most / 32 * 32; threads > 0; threads -= 32) {
    const size_t shared = shared_of != nullptr ? shared_of(threads) : shared_bytes;
    const int blocks = sim::blocks_per_sm(*function, context->device, threads, shared);
    if (blocks * threads <= best_threads) continue;
    best_threads = blocks * threads;
    *block_size = threads;
    *min_grid = blocks * sim::sm_count(context);
  }
  return CUDA_SUCCESS;
}

SIM_API(cuOccupancyMaxPotentialBlockSize)
(int* min_grid, int* block_size, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared_bytes,
 int limit) {
  return sim_cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid, block_size, function, shared_of,
                                                       shared_bytes, limit, 0);
}

SIM_API(cuOccupancyAvailableDynamicSMemPerBlock)
(size_t* shared_bytes, CUfunction function, int blocks, int block_threads) {
  CUctx_st* context;
  if (CUresult error = sim::check(function, &context)) return error;
  if (shared_bytes == nullptr || blocks <= 0 || block_threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  const int share = sim::device_model(context->device).shared_per_sm_bytes / blocks - 1024;
  *shared_bytes = static_cast<size_t>(std::clamp(share, 0, sim::shared_limit(context)));
  return CUDA_SUCCESS;
}

SIM_API(cuOccupancyMaxActiveClusters)(int* clusters, CUfunction function, const CUlaunchConfig* config) {
  CUctx_st* context;
  if (CUresult error = sim::check(function, &context)) return error;
  if (clusters == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
  unsigned cluster_blocks = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& dimension = config->attrs[i].value.clusterDim;
    cluster_blocks = std::max(1u, dimension.x * dimension.y * dimension.z);
  }
  const int blocks =
      sim::blocks_per_sm(*function, context->device, static_cast<int>(threads), config->sharedMemBytes);
  *clusters = blocks * sim::sm_count(context) / static_cast<int>(cluster_blocks);
  return CUDA_SUCCESS;
}

SIM_API(cuOccupancyMaxPotentialClusterSize)(int* size, CUfunction function, const CUlaunchConfig* config) {
  CUctx_st* context;
  if (CUresult error = sim::check(function, &context)) return error;
  if (size == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *size = sim::device_model(context->device).cc_major >= 9 ? 8 : 1;
  return CUDA_SUCCESS;
}
