// SPDX-License-Identifier: Apache-2.0
//
// System calls made directly: errno is the program's and stays as it was, none of these is a cancellation
// point, and the library imports next to nothing that the loader would have to bind. Results are the
// kernel's: -errno on failure.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#if !defined(__x86_64__)
#error "the preloaded libraries know x86-64 only, as their exports are assembly"
#endif

namespace hook {

#ifdef __clang_analyzer__
// An analyser does not see that the assembly below writes memory; what has no body may.
long system_call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0);
#else
inline long system_call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}
#endif

inline long as_long(const void* pointer) { return reinterpret_cast<long>(pointer); }

inline uint64_t now_ns() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

inline struct timespec to_timespec(uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

inline void sleep_ns(uint64_t ns) {
  const struct timespec nap = to_timespec(ns);
  system_call(SYS_nanosleep, as_long(&nap));
}

// Sleeps while *word is `expected`, at most timeout_ns. The caller looks again, whatever woke it. `word` may
// lie in read-only memory. `shared`: other processes wake it.
inline void futex_wait(const std::atomic<uint32_t>* word, uint32_t expected, uint64_t timeout_ns,
                       bool shared) {
  const struct timespec timeout = to_timespec(timeout_ns);
  system_call(SYS_futex, as_long(word), shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, expected,
              as_long(&timeout));
}

inline void futex_wake(std::atomic<uint32_t>* word, int sleepers, bool shared) {
  system_call(SYS_futex, as_long(word), shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, sleepers);
}

}  // namespace hook
