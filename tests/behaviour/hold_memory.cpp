// SPDX-License-Identifier: Apache-2.0
//
// hold_memory MIB: takes it, says "holds" and its pid, and waits for a line or the end of its input.
#include <unistd.h>

#include "behaviour.h"

int main(int argc, char** argv) {
  const uint64_t bytes = argument(argc, argv, 1) * kMiB;
  start();
  CUdeviceptr pointer;
  OK(cuMemAlloc(&pointer, bytes));
  printf("holds\n%d\n", getpid());
  fflush(stdout);
  char ignored;
  while (read(STDIN_FILENO, &ignored, 1) > 0 && ignored != '\n') {
  }
  return finish();
}
