// SPDX-License-Identifier: Apache-2.0
#include "sim/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <atomic>

namespace sim {
namespace {

struct Stat {
  char state;
  long threads;
  uint64_t start_time;
};

// 0, or the errno that says why /proc has no answer.
int read_stat(uint64_t pid, Stat* out) {
  char path[40];
  snprintf(path, sizeof(path), "/proc/%llu/stat", static_cast<unsigned long long>(pid));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  char text[1024];
  const ssize_t length = read(fd, text, sizeof(text) - 1);
  const int error = errno;
  close(fd);
  if (length <= 0) return length < 0 ? error : ESRCH;
  text[length] = 0;
  // The second field, the name, is in parentheses and may hold anything; state is the third, num_threads the
  // 20th, starttime the 22nd.
  const char* rest = strrchr(text, ')');
  unsigned long long start_time;
  const char* const fields =
      " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu";
  if (!rest || sscanf(rest + 1, fields, &out->state, &out->threads, &start_time) != 3) return EPROTO;
  out->start_time = start_time;
  return 0;
}

ProcessIdentity g_identity;
std::atomic<bool> g_identity_known;
pthread_mutex_t g_identity_lock = PTHREAD_MUTEX_INITIALIZER;

void forget_identity() {
  g_identity_lock = PTHREAD_MUTEX_INITIALIZER;
  g_identity_known.store(false, std::memory_order_relaxed);
}

}  // namespace

const ProcessIdentity& this_process() {
  if (g_identity_known.load(std::memory_order_acquire)) return g_identity;
  pthread_mutex_lock(&g_identity_lock);
  if (!g_identity_known.load(std::memory_order_relaxed)) {
    static bool watches_forks = false;
    if (!watches_forks) watches_forks = pthread_atfork(nullptr, nullptr, forget_identity) == 0;
    g_identity.pid = getpid();
    Stat stat = {};
    read_stat(g_identity.pid, &stat);
    g_identity.start_time = stat.start_time;
    // The kernel's random bytes for this program: the same for every copy of this code in the process.
    memcpy(&g_identity.image, reinterpret_cast<const void*>(getauxval(AT_RANDOM)), sizeof(g_identity.image));
    g_identity_known.store(true, std::memory_order_release);
  }
  pthread_mutex_unlock(&g_identity_lock);
  return g_identity;
}

bool is_alive(uint64_t pid, uint64_t start_time) {
  Stat stat = {};
  const int error = read_stat(pid, &stat);
  if (error) {
    // Not for lack of file descriptors, nor because /proc hides other users' processes.
    return kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH;
  }
  if (stat.start_time != start_time) return false;
  // A first thread that has exited shows as a zombie as long as others run; the process lives on in them.
  const bool exited = stat.state == 'Z' || stat.state == 'X';
  return !exited || stat.threads > 1;
}

}  // namespace sim
