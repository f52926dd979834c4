// SPDX-License-Identifier: Apache-2.0
//
// Processes of one node take from the same memory: three of them allocate until they are refused, and what
// they hold together is what the device has. One of them is killed, and its memory is free. Runs under
// simgpu; ends with EXIT-SUCCESS.
#include <cuda.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kProcesses = 3;
constexpr size_t kPiece = 64u << 20;

void check(bool good, const char* what) {
  if (good) return;
  printf("not %s\n", what);
  exit(1);
}

void start_driver() {
  CUcontext context;
  check(cuInit(0) == CUDA_SUCCESS, "initialised");
  check(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "retained");
  check(cuCtxSetCurrent(context) == CUDA_SUCCESS, "current");
}

size_t take_until_refused() {
  size_t bytes = 0;
  CUdeviceptr memory;
  while (cuMemAlloc(&memory, kPiece) == CUDA_SUCCESS) bytes += kPiece;
  return bytes;
}

struct Share {
  pid_t pid;
  size_t bytes;
};

void tell(int pipe_end, size_t bytes) {
  const Share share{getpid(), bytes};
  check(write(pipe_end, &share, sizeof share) == sizeof share, "told");
}

Share hear(int pipe_end) {
  Share share{};
  check(read(pipe_end, &share, sizeof share) == sizeof share, "heard");
  return share;
}

}  // namespace

int main() {
  int from_children[2], go[2], hold[2];
  check(pipe(from_children) == 0 && pipe(go) == 0 && pipe(hold) == 0, "piped");
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      close(go[1]);
      close(hold[1]);
      start_driver();
      tell(from_children[1], 0);
      // All have their contexts before the first takes all the rest.
      char end;
      if (read(go[0], &end, 1) != 0) _exit(1);
      const size_t bytes = take_until_refused();
      tell(from_children[1], bytes);
      _exit(read(hold[0], &end, 1) == 0 ? 0 : 1);  // holds it until the parent closes its end
    }
    children.push_back(child);
  }
  close(from_children[1]);
  for (int i = 0; i < kProcesses; ++i) hear(from_children[0]);
  close(go[1]);
  size_t together = 0;
  Share largest{};
  for (int i = 0; i < kProcesses; ++i) {
    const Share share = hear(from_children[0]);
    together += share.bytes;
    if (share.bytes > largest.bytes) largest = share;
  }
  check(cuInit(0) == CUDA_SUCCESS, "initialised");
  size_t total = 0;
  check(cuDeviceTotalMem(&total, 0) == CUDA_SUCCESS, "total known");
  check(together <= total, "within the device");
  check(total - together < kProcesses * (600u << 20) + kPiece, "full but for contexts");

  CUcontext context;
  check(cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) == CUDA_SUCCESS,
        "usable");
  kill(largest.pid, SIGKILL);
  waitpid(largest.pid, nullptr, 0);
  check(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "room for a context after a kill");
  check(cuCtxSetCurrent(context) == CUDA_SUCCESS, "current");
  check(take_until_refused() > 0, "room for memory after a kill");
  close(hold[1]);
  for (const pid_t child : children) {
    if (child == largest.pid) continue;
    int status = 0;
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "ended well");
  }
  printf("EXIT-SUCCESS\n");
}
