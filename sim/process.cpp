// SPDX-License-Identifier: Apache-2.0
#include "sim/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

#include "sim/host_pids.h"

namespace sim {
namespace {

constexpr size_t kPage = 4096;

// When the process started, in clock ticks since boot. 0: /proc does not say.
uint64_t start_time() {
  const int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  const ssize_t length = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (length <= 0) return 0;
  text[length] = 0;
  // The second field, the name, is in parentheses and may hold anything; the 22nd is wanted.
  const char* rest = strrchr(text, ')');
  unsigned long long ticks;
  const char* const fields =
      " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu";
  return rest && sscanf(rest + 1, fields, &ticks) == 1 ? ticks : 0;
}

// A byte far behind the end of the node's file. The same for every copy of this code in the process; another
// for each process, since the kernel's random bytes are a program's own and the rest is a process' own.
uint64_t choose_life() {
  uint64_t random;
  memcpy(&random, reinterpret_cast<const void*>(getauxval(AT_RANDOM)), sizeof(random));
  uint64_t value = random;
  for (const uint64_t part : {static_cast<uint64_t>(getpid()), pid_namespace(), start_time()}) {
    value = (value ^ part) * 0x9e3779b97f4a7c15;
    value ^= value >> 29;
  }
  return value >> 2 | 1ull << 61;
}

struct flock byte_lock(uint64_t life) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(life);
  lock.l_len = 1;
  return lock;
}

// The lock belongs to the open file, which the mapping keeps open when the descriptor is closed: no program
// can close it by accident.
bool hold(const char* file, uint64_t life) {
  const int fd = open(file, O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  struct flock lock = byte_lock(life);
  bool held = fcntl(fd, F_OFD_SETLK, &lock) == 0;
  if (held) {
    held = mmap(nullptr, kPage, PROT_NONE, MAP_SHARED, fd, 0) != MAP_FAILED;
  } else {
    held = errno == EAGAIN;  // by another copy of this code
  }
  close(fd);
  return held;
}

ProcessIdentity g_identity;
std::atomic<bool> g_identity_known;
pthread_mutex_t g_identity_lock = PTHREAD_MUTEX_INITIALIZER;

void forget_identity() {
  g_identity_lock = PTHREAD_MUTEX_INITIALIZER;
  g_identity_known.store(false, std::memory_order_relaxed);
}

}  // namespace

uint64_t pid_namespace() {
  struct stat status;
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

Lives::Lives(std::string file, std::string directory, uint64_t host_namespace)
    : file_(std::move(file)), directory_(std::move(directory)), host_namespace_(host_namespace) {}

const ProcessIdentity& Lives::self() const {
  if (g_identity_known.load(std::memory_order_acquire)) return g_identity;
  pthread_mutex_lock(&g_identity_lock);
  if (!g_identity_known.load(std::memory_order_relaxed)) {
    static bool watches_forks = false;
    if (!watches_forks) watches_forks = pthread_atfork(nullptr, nullptr, forget_identity) == 0;
    const uint64_t life = choose_life();
    const bool held = hold(file_.c_str(), life);
    if (!held) {
      fprintf(stderr, "simgpu: cannot lock %s: %s; this process gets no memory and no contexts\n",
              file_.c_str(), strerror(errno));
    }
    const uint64_t own_namespace = pid_namespace();
    const bool is_host = own_namespace == 0 || own_namespace == host_namespace_;
    g_identity = {is_host ? static_cast<uint64_t>(getpid()) : ask_host_pid(directory_), held ? life : 0};
    g_identity_known.store(true, std::memory_order_release);
  }
  pthread_mutex_unlock(&g_identity_lock);
  return g_identity;
}

Lives::Look::Look(const Lives& lives) : fd_(open(lives.file_.c_str(), O_RDWR | O_CLOEXEC)) {}

Lives::Look::~Look() {
  if (fd_ >= 0) close(fd_);
}

bool Lives::Look::is_alive(uint64_t life) const {
  struct flock lock = byte_lock(life);
  return fd_ < 0 || fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace sim
