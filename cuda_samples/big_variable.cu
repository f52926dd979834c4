// SPDX-License-Identifier: Apache-2.0
//
// A module that takes memory by being there: every_way loads it.
__device__ char big_variable[64 << 20];

extern "C" __global__ void touch(int value) { big_variable[threadIdx.x] = static_cast<char>(value); }
