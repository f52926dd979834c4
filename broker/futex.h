// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "shm/layout.h"

namespace broker {

// Futexes on words that other processes share: never the PRIVATE forms. The kernel refuses one on a truncated
// file with EFAULT instead of a signal.

// Sleeps while `word` is `expected`. false with errno: EAGAIN (it is not), EINTR, EFAULT.
inline bool futex_wait(const shm::Shared<uint32_t>& word, uint32_t expected) {
  return syscall(SYS_futex, &word, FUTEX_WAIT, expected, nullptr, nullptr, 0) == 0;
}

inline void futex_wake(const shm::Shared<uint32_t>& word, int sleepers = INT_MAX) {
  syscall(SYS_futex, &word, FUTEX_WAKE, sleepers, nullptr, nullptr, 0);
}

}  // namespace broker
