// SPDX-License-Identifier: Apache-2.0
#include "broker/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace broker {
namespace {

std::string proc_file(pid_t pid, const char* name) { return "/proc/" + std::to_string(pid) + "/" + name; }

std::string read_small_file(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t length = fd ? read(fd.get(), text, sizeof text) : -1;
  return length > 0 ? std::string(text, static_cast<size_t>(length)) : std::string();
}

bool has_ended(int pidfd) {
  pollfd poll_fd = {.fd = pidfd, .events = POLLIN, .revents = 0};
  return poll(&poll_fd, 1, 0) != 0;
}

// The pid that the process has in its innermost pid namespace; 0: gone.
uint32_t innermost_pid(pid_t pid) {
  std::ifstream status(proc_file(pid, "status"));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("NSpid:")) continue;
    const size_t last = line.find_last_of(" \t");
    return static_cast<uint32_t>(strtoul(line.c_str() + last + 1, nullptr, 10));
  }
  return 0;
}

// A number of /proc/<pid>/stat, from field 4 on; 0: no such process.
uint64_t stat_field(pid_t pid, int wanted) {
  const std::string stat = read_small_file(proc_file(pid, "stat"));
  // The name in field 2 may hold spaces and brackets; the last bracket ends it, field 3 follows.
  size_t at = stat.rfind(')');
  if (at == std::string::npos) return 0;
  at += 2;
  for (int field = 3; field < wanted; ++field) {
    at = stat.find(' ', at);
    if (at == std::string::npos) return 0;
    ++at;
  }
  return strtoull(stat.c_str() + at, nullptr, 10);
}

template <typename Visit>
void for_each_process(Visit visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  while (const dirent* entry = proc != nullptr ? readdir(proc.get()) : nullptr) {
    pid_t pid = 0;
    const std::string_view name = entry->d_name;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && end == name.data() + name.size()) visit(pid);
  }
}

}  // namespace

uint64_t process_start_time(pid_t pid) { return stat_field(pid, 22); }

pid_t parent_of(pid_t pid) { return static_cast<pid_t>(stat_field(pid, 4)); }

std::string process_name(pid_t pid) {
  std::string name = read_small_file(proc_file(pid, "comm"));
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

std::optional<Process> open_process(pid_t pid, uint64_t start_time) {
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return std::nullopt;
  // Read after the pidfd is open, and the process alive after that: so all three are of one process.
  const uint64_t now_there = process_start_time(pid);
  if (now_there == 0 || has_ended(pidfd.get()) || (start_time != 0 && now_there != start_time))
    return std::nullopt;
  return Process{pid, now_there, std::move(pidfd)};
}

std::optional<Process> open_peer(int socket) {
  ucred peer = {};
  socklen_t length = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0) return std::nullopt;

  int peer_pidfd = -1;
  length = sizeof peer_pidfd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &peer_pidfd, &length) == 0) {
    UniqueFd pidfd(peer_pidfd);
    const uint64_t start_time = process_start_time(peer.pid);
    if (start_time == 0 || has_ended(pidfd.get())) return std::nullopt;
    return Process{peer.pid, start_time, std::move(pidfd)};
  }

  // Before Linux 6.5 the pid may have been reused since it connected: then its end of the socket is closed.
  std::optional<Process> process = open_process(peer.pid, 0);
  pollfd hang_up = {.fd = socket, .events = 0, .revents = 0};
  if (poll(&hang_up, 1, 0) != 0) return std::nullopt;
  return process;
}

uint64_t own_pid_namespace() {
  struct stat own;
  return stat("/proc/self/ns/pid", &own) == 0 ? own.st_ino : 0;
}

bool sees_all_processes() {
  constexpr uint64_t kFirst = 0xeffffffc;  // PROC_PID_INIT_INO of the kernel
  return own_pid_namespace() == kFirst;
}

std::optional<Process> NamespaceSearch::find(uint64_t pid_namespace, uint32_t pid) {
  const uint64_t own = own_pid_namespace();
  if (own == pid_namespace) {
    return open_process(static_cast<pid_t>(pid), 0);
  }
  if (!known_) {
    known_.emplace();
    for_each_process([&](pid_t candidate) {
      struct stat ns;
      if (stat(proc_file(candidate, "ns/pid").c_str(), &ns) != 0 || ns.st_ino == own) return;
      (*known_)[{ns.st_ino, innermost_pid(candidate)}] = candidate;
    });
  }
  const auto found = known_->find({pid_namespace, pid});
  return found == known_->end() ? std::nullopt : open_process(found->second, 0);
}

}  // namespace broker
