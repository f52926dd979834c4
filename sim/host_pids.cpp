// SPDX-License-Identifier: Apache-2.0
#include "sim/host_pids.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <thread>

namespace sim {
namespace {

constexpr const char* kSocketName = "pids";
constexpr timeval kPatience = {.tv_sec = 2, .tv_usec = 0};

// The socket's address. The directory's path may be longer than an address takes, so it is named by a
// descriptor.
class Address {
 public:
  explicit Address(const std::string& directory)
      : directory_(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    address_.sun_family = AF_UNIX;
    snprintf(address_.sun_path, sizeof(address_.sun_path), "/proc/self/fd/%d/%s", directory_, kSocketName);
  }
  ~Address() {
    if (directory_ >= 0) close(directory_);
  }
  Address(const Address&) = delete;
  Address& operator=(const Address&) = delete;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  const char* path() const { return address_.sun_path; }

 private:
  int directory_;
  sockaddr_un address_ = {};
};

int connect_to(const Address& address) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  if (connect(fd, address.get(), sizeof(sockaddr_un)) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

struct HostPids::Server {
  std::string directory;
  int fd;
  std::thread thread;

  void answer() const {
    for (;;) {
      const int peer = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
      if (peer < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return;
      }
      ucred credentials = {};
      socklen_t size = sizeof(credentials);
      const uint64_t pid =
          getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 ? credentials.pid : 0;
      static_cast<void>(send(peer, &pid, sizeof(pid), MSG_NOSIGNAL));
      close(peer);
    }
  }
};

HostPids::HostPids(std::unique_ptr<Server> server) : server_(std::move(server)) {}

std::unique_ptr<HostPids> HostPids::serve(const std::string& directory, std::string* error) {
  error->clear();
  const Address address(directory);
  if (const int other = connect_to(address); other >= 0) {
    close(other);
    return nullptr;
  }
  unlink(address.path());  // left by one that was killed
  auto server = std::make_unique<Server>();
  server->directory = directory;
  server->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (server->fd < 0 || bind(server->fd, address.get(), sizeof(sockaddr_un)) != 0 ||
      chmod(address.path(), 0666) != 0 || listen(server->fd, 128) != 0) {
    *error = "cannot serve " + directory + "/" + kSocketName + ": " + strerror(errno);
    if (server->fd >= 0) close(server->fd);
    return nullptr;
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  server->thread = std::thread([raw = server.get()] { raw->answer(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return std::unique_ptr<HostPids>(new HostPids(std::move(server)));
}

HostPids::~HostPids() {
  unlink((server_->directory + "/" + kSocketName).c_str());
  shutdown(server_->fd, SHUT_RDWR);  // ends the accept
  server_->thread.join();
  close(server_->fd);
}

uint64_t ask_host_pid(const std::string& directory) {
  uint64_t pid = 0;
  const int fd = connect_to(Address(directory));
  const bool answered = fd >= 0 && recv(fd, &pid, sizeof(pid), MSG_WAITALL) == sizeof(pid) && pid != 0;
  if (fd >= 0) close(fd);
  if (answered) return pid;
  fprintf(
      stderr,
      "simgpu: nobody tells the host's pids in %s (simgpu serve does): NVML will list this process as %d\n",
      directory.c_str(), getpid());
  return getpid();
}

}  // namespace sim
