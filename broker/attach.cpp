// SPDX-License-Identifier: Apache-2.0
#include "broker/attach.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace broker {
namespace {

constexpr size_t kMaxConnections = 64;

// Binds to a file in a directory that is open. The path of a socket address has 108 bytes; the one through
// /proc/self/fd is short wherever the run directory is.
bool bind_in(int socket, int directory, const char* file) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", directory, file);
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

AttachListener::AttachListener(EventLoop& loop, UniqueFd socket, Handler handler, Lost lost)
    : loop_(loop), socket_(std::move(socket)), handler_(std::move(handler)), lost_(std::move(lost)) {
  watch_ = loop_.watch(socket_.get(), [this] { accept_connection(); });
}

AttachListener::~AttachListener() {
  loop_.unwatch(watch_);
  while (!connections_.empty()) drop(connections_.begin());
}

Status AttachListener::open(EventLoop& loop, const std::string& path, Handler handler, Lost lost,
                            std::unique_ptr<AttachListener>* listener) {
  const UniqueFd directory(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Made beside and moved over: there is no moment without a socket, and none with one that others may not
  // open.
  constexpr char kNew[] = "attach.new";
  if (directory) unlinkat(directory.get(), kNew, 0);
  if (!directory || !socket || !bind_in(socket.get(), directory.get(), kNew) ||
      fchmodat(directory.get(), kNew, 0666, 0) != 0 || listen(socket.get(), SOMAXCONN) != 0 ||
      renameat(directory.get(), kNew, directory.get(), "attach") != 0) {
    return fail(Failure::kSystem, "cannot listen on " + path + "/attach: " + strerror(errno));
  }
  listener->reset(new AttachListener(loop, std::move(socket), std::move(handler), std::move(lost)));
  return {};
}

void AttachListener::accept_connection() {
  UniqueFd fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return;
  if (connections_.size() >= kMaxConnections) drop(connections_.begin());
  connections_.push_back({std::move(fd)});
  const auto connection = std::prev(connections_.end());
  connection->watch = loop_.watch(connection->fd.get(), [this, connection] { answer(connection); });
}

void AttachListener::answer(Connections::iterator connection) {
  shm::AttachRequest request = {};
  const ssize_t length = recv(connection->fd.get(), &request, sizeof request, 0);
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (length == sizeof request) {
    shm::AttachReply reply = {};
    reply.status = shm::kAttachRefused;
    if (std::optional<Process> peer = open_peer(connection->fd.get())) {
      reply.host_pid = static_cast<uint32_t>(peer->pid);
      reply.status = handler_(std::move(*peer), request);
    }
    send(connection->fd.get(), &reply, sizeof reply, MSG_NOSIGNAL);
  }
  drop(connection);
  if (length <= 0) lost_();
}

void AttachListener::drop(Connections::iterator connection) {
  loop_.unwatch(connection->watch);
  connections_.erase(connection);
}

}  // namespace broker
