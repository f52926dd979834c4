// SPDX-License-Identifier: Apache-2.0
//
// A child forked before the driver was initialised is a process of the slice like any other. One forked after
// that can't use CUDA, which is the driver's rule; it takes nothing, and its end gives back nothing of its
// parent's.
#include <sys/wait.h>
#include <unistd.h>

#include "behaviour.h"

namespace {

template <typename Body>
void in_child(Body body) {
  const pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    body();
    fflush(stdout);
    _exit(0);
  }
  int status;
  MUST(waitpid(child, &status, 0) == child);
  MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

int main() {
  in_child([] {
    start();
    CUdeviceptr pointer;
    OK(cuMemAlloc(&pointer, 1024 * kMiB));
  });
  start();
  const uint64_t before = free_bytes();
  CUdeviceptr pointer;
  OK(cuMemAlloc(&pointer, 512 * kMiB));
  in_child([] {
    CUdeviceptr in_child;
    MUST(cuMemAlloc(&in_child, 64 * kMiB) != CUDA_SUCCESS);
    MUST(cuInit(0) != CUDA_SUCCESS);
  });
  MUST(free_bytes() == before - 512 * kMiB);
  OK(cuMemFree(pointer));
  MUST(free_bytes() == before);
  return finish();
}
