// SPDX-License-Identifier: Apache-2.0
//
// Functions of the C library whose current symbol version is newer than what we may import. Hidden, so that
// what is compiled into this library finds these.
#include <errno.h>
#include <sys/stat.h>

#include "interpose/syscalls.h"

// fstat became a symbol of its own in glibc 2.33.
extern "C" [[gnu::visibility("hidden")]] int fstat(int file, struct stat* status) noexcept {
  const long result = hook::system_call(SYS_fstat, file, hook::as_long(status));
  if (result == 0) return 0;
  errno = static_cast<int>(-result);
  return -1;
}
