// SPDX-License-Identifier: Apache-2.0
#include "interpose/process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "interpose/syscalls.h"

namespace hook {
namespace {

// Reads a small file of /proc whole, closed by a 0. Its length, or -errno.
template <size_t capacity>
long read_file(const char* path, char (&out)[capacity]) {
  const long file = system_call(SYS_openat, AT_FDCWD, as_long(path), O_RDONLY | O_CLOEXEC);
  if (file < 0) return file;
  const long bytes = system_call(SYS_read, file, as_long(out), capacity - 1);
  system_call(SYS_close, file);
  if (bytes >= 0) out[bytes] = 0;
  return bytes;
}

uint64_t read_decimal(const char* text) {
  uint64_t number = 0;
  for (; *text >= '0' && *text <= '9'; text++) number = number * 10 + static_cast<uint64_t>(*text - '0');
  return number;
}

// Field 22 of /proc/<pid>/stat. The second field is a name in parentheses that may hold anything, so counting
// starts behind the last ')'.
bool start_time_in(const char* stat, uint64_t* start_time) {
  const char* at = strrchr(stat, ')');
  if (at == nullptr) return false;
  for (int field = 2; field < 22; field++) {
    at = strchr(at, ' ');
    if (at == nullptr) return false;
    at++;
  }
  *start_time = read_decimal(at);
  return true;
}

// Whether /proc has the pids of this process's namespace. In one that has not mounted its own, another
// process is under a peer's pid.
bool proc_is_of_own_namespace() {
  char text[24];
  const long bytes = system_call(SYS_readlink, as_long("/proc/self"), as_long(text), sizeof text - 1);
  if (bytes <= 0) return false;
  text[bytes] = 0;
  return read_decimal(text) == static_cast<uint64_t>(system_call(SYS_getpid));
}

}  // namespace

void identify_self(limiter::ProcessIdentity* self) {
  *self = {};
  self->pid = static_cast<uint32_t>(system_call(SYS_getpid));
  char text[1024];
  if (read_file("/proc/self/stat", text) > 0) start_time_in(text, &self->start_time);
  if (read_file("/proc/self/comm", text) > 0) {
    for (size_t i = 0; i < sizeof self->name - 1 && text[i] != 0 && text[i] != '\n'; i++)
      self->name[i] = text[i];
  }
  // "pid:[4026531836]"
  const long bytes = system_call(SYS_readlink, as_long("/proc/self/ns/pid"), as_long(text), sizeof text - 1);
  if (bytes > 0) {
    text[bytes] = 0;
    if (const char* number = strchr(text, '[')) self->pid_namespace = read_decimal(number + 1);
  }
}

bool process_is_dead(uint32_t pid, uint64_t start_time) {
  if (system_call(SYS_kill, pid, 0) == -ESRCH) return true;
  if (!proc_is_of_own_namespace()) return false;
  char path[64] = "/proc/";
  const size_t digits = write_decimal(pid, path + 6);
  memcpy(path + 6 + digits, "/stat", 6);
  char stat[1024];
  uint64_t now_there = 0;
  if (read_file(path, stat) <= 0 || !start_time_in(stat, &now_there)) return false;
  return now_there != start_time;
}

// A line is "55d0c8000000-55d0c8001000 rw-s 00000000 00:19 1234    /path": the fourth number is the inode,
// the second to last word before the path.
int count_mappings(const char* path) {
  struct stat status;
  if (system_call(SYS_newfstatat, AT_FDCWD, as_long(path), as_long(&status), 0) != 0) return 0;
  const long file = system_call(SYS_openat, AT_FDCWD, as_long("/proc/self/maps"), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  int count = 0;
  int word = 0;  // of the line
  bool at_start_of_file = false;
  uint64_t number = 0;
  char buffer[4096];
  for (long bytes; (bytes = system_call(SYS_read, file, as_long(buffer), sizeof buffer)) > 0;) {
    for (long i = 0; i < bytes; i++) {
      const char c = buffer[i];
      if (c == '\n') {
        word = 0;
      } else if (c != ' ') {
        number = number * 10 + static_cast<uint64_t>(c - '0');  // only read where it is a decimal number
        continue;
      } else {
        if (word == 2) at_start_of_file = number == 0;
        if (word == 4 && at_start_of_file && number == status.st_ino) count++;
        word++;
      }
      number = 0;
    }
  }
  system_call(SYS_close, file);
  return count;
}

size_t write_decimal(uint64_t number, char* out) {
  char digits[20];
  size_t count = 0;
  do {
    digits[count++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  for (size_t i = 0; i < count; i++) out[i] = digits[count - 1 - i];
  out[count] = 0;
  return count;
}

}  // namespace hook
