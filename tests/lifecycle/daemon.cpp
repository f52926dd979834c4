// SPDX-License-Identifier: Apache-2.0
//
// daemon MIB FILE: leaves its parent and its session, closes every descriptor, takes so much memory, closes
// every descriptor again, and writes its pid into the file. Stays until it is killed.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "behaviour.h"

namespace {

void close_everything() {
  for (int descriptor = 0; descriptor < 1024; descriptor++) close(descriptor);
}

void leave(pid_t child) {
  MUST(child >= 0);
  if (child != 0) _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t bytes = argument(argc, argv, 1) * kMiB;
  MUST(argc == 3);
  leave(fork());
  MUST(setsid() > 0);
  leave(fork());
  close_everything();

  CUdeviceptr pointer;
  start();
  OK(cuMemAlloc(&pointer, bytes));
  close_everything();

  const std::string text = std::to_string(getpid()) + "\n";
  const std::string beside = std::string(argv[2]) + ".new";
  const int file = open(beside.c_str(), O_WRONLY | O_CREAT, 0600);
  MUST(write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  close(file);
  MUST(rename(beside.c_str(), argv[2]) == 0);
  for (;;) pause();
}
