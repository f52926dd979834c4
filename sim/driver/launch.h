// SPDX-License-Identifier: Apache-2.0
//
// Kernels: how long one takes and how many SMs it occupies. It computes nothing.
//
// The duration is, in this order: what SIMGPU_KERNELS says for the name ("name=us,..."; the first entry whose
// name is a part of the kernel's mangled name); the kernel's first parameter, in nanoseconds, if its name
// contains `_for_ns`; the node's default.
#pragma once

#include "sim/driver/module.h"
#include "sim/driver/stream.h"

namespace sim {

// Checks a launch as the driver does and works out what it costs. `params.func` may be a CUkernel.
CUresult prepare_kernel(const CUDA_KERNEL_NODE_PARAMS_v3& params, CUctx_st* context, bool cooperative,
                        RunKernel* kernel);

// What SIMGPU_KERNELS says about a name; 0: nothing.
uint64_t listed_duration_ns(const char* name);

// Blocks of a kernel that one SM holds at a time; 0: not even one fits.
int blocks_per_sm(const CUfunc_st& function, int device, int block_threads, size_t dynamic_shared_bytes);

}  // namespace sim
