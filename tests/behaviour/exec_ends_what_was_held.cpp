// SPDX-License-Identifier: Apache-2.0
//
// An exec ends a process's use of the GPU, though not the process: its new image has the whole slice.
#include <unistd.h>

#include <string>

#include "behaviour.h"

int main(int argc, char** argv) {
  constexpr int kImages = 4;
  const int image = argc > 1 ? atoi(argv[1]) : 1;
  start();
  CUdeviceptr pointer;
  OK(cuMemAlloc(&pointer, 1024 * kMiB));
  MUST_BE(cuMemAlloc(&pointer, 1024 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  if (image == kImages) return finish();
  execl(argv[0], argv[0], std::to_string(image + 1).c_str(), nullptr);
  MUST(!"execl");
}
