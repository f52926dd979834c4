// SPDX-License-Identifier: Apache-2.0
//
// A program that was linked to libcuda.so.1: says what cuInit and cuDeviceGetCount give.
#include <cuda.h>

#include <cstdio>

int main() {
  int count = -1;
  const CUresult init = cuInit(0);
  const CUresult counted = cuDeviceGetCount(&count);
  printf("cuInit %d, cuDeviceGetCount %d, %d devices\n", init, counted, count);
  return 0;
}
