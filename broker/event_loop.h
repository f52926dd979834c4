// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "broker/unique_fd.h"

namespace broker {

// One thread that owns what its callbacks touch: descriptors that become readable, timers, and work that
// other threads hand in. Only post(), call() and stop() may be called from other threads. Sleeps when there
// is nothing.
class EventLoop {
 public:
  using Callback = std::function<void()>;
  using WatchId = uint64_t;

  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Until stop(). Whoever calls it is the loop's thread.
  void run();
  void stop();

  // `readable` is called whenever the descriptor is; it may end its own watch. The descriptor stays the
  // caller's and must be open until unwatch().
  WatchId watch(int fd, Callback readable);
  void unwatch(WatchId id);

  // Once, at `time_ns` or soon after.
  void call_at(uint64_t time_ns, Callback callback);

  void post(Callback callback);
  // Runs `callback` on the loop's thread and waits for its end. After stop() it is not run, and false
  // returned.
  bool call(const Callback& callback);

 private:
  void run_posted();
  void run_timers();
  int timeout_ms() const;

  UniqueFd epoll_;
  UniqueFd wake_;
  std::map<WatchId, Callback> watches_;
  std::map<WatchId, int> watched_fds_;
  WatchId next_watch_ = 1;
  std::multimap<uint64_t, Callback> timers_;

  std::mutex mutex_;  // guards what follows
  std::vector<Callback> posted_;
  bool stopped_ = false;
};

}  // namespace broker
