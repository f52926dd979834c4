// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "broker/event_loop.h"
#include "broker/process.h"
#include "broker/status.h"
#include "shm/layout.h"

namespace broker {

// The `attach` socket of a slice: each connection brings one request and gets one answer. Who asks is known
// from the socket's credentials and from nothing that it says. Of the connections that ask nothing only so
// many are kept, the oldest gives way. Owned and called by the event loop's thread.
class AttachListener {
 public:
  using Handler = std::function<shm::AttachStatus(Process peer, const shm::AttachRequest& request)>;
  // A connection has ended without a request: who it was may be dead, and in a slot.
  using Lost = std::function<void()>;

  // Replaces the socket file that an earlier broker left.
  static Status open(EventLoop& loop, const std::string& directory, Handler handler, Lost lost,
                     std::unique_ptr<AttachListener>* listener);
  ~AttachListener();
  AttachListener(const AttachListener&) = delete;
  AttachListener& operator=(const AttachListener&) = delete;

 private:
  struct Connection {
    UniqueFd fd;
    EventLoop::WatchId watch = 0;
  };
  using Connections = std::list<Connection>;

  AttachListener(EventLoop& loop, UniqueFd socket, Handler handler, Lost lost);
  void accept_connection();
  void answer(Connections::iterator connection);
  void drop(Connections::iterator connection);

  EventLoop& loop_;
  const UniqueFd socket_;
  const Handler handler_;
  const Lost lost_;
  EventLoop::WatchId watch_ = 0;
  Connections connections_;
};

}  // namespace broker
