// SPDX-License-Identifier: Apache-2.0
#include "broker/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <future>
#include <system_error>
#include <utility>

#include "broker/clock.h"

namespace broker {
namespace {

constexpr uint64_t kWakeId = 0;

void check(bool ok, const char* what) {
  if (!ok) throw std::system_error(errno, std::generic_category(), what);
}

void add_to_epoll(int epoll, int fd, uint64_t id) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = id;
  check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

}  // namespace

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  check(epoll_ && wake_, "cannot make an event loop");
  add_to_epoll(epoll_.get(), wake_.get(), kWakeId);
}

EventLoop::WatchId EventLoop::watch(int fd, Callback readable) {
  const WatchId id = next_watch_++;
  add_to_epoll(epoll_.get(), fd, id);
  watches_[id] = std::move(readable);
  watched_fds_[id] = fd;
  return id;
}

void EventLoop::unwatch(WatchId id) {
  const auto found = watched_fds_.find(id);
  if (found == watched_fds_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second, nullptr);
  watched_fds_.erase(found);
  watches_.erase(id);
}

void EventLoop::call_at(uint64_t time_ns, Callback callback) {
  timers_.emplace(time_ns, std::move(callback));
}

void EventLoop::post(Callback callback) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(callback));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

bool EventLoop::call(const Callback& callback) {
  std::promise<bool> done;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    posted_.push_back([&] {
      callback();
      done.set_value(true);
    });
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  return done.get_future().get();
}

void EventLoop::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void EventLoop::run() {
  for (;;) {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms());
    for (int i = 0; i < count; ++i) {
      const WatchId id = events[i].data.u64;
      if (id == kWakeId) {
        uint64_t ignored;
        [[maybe_unused]] const ssize_t got = read(wake_.get(), &ignored, sizeof ignored);
        continue;
      }
      // An earlier callback of this round may have ended this watch; a copy, as this one may end its own.
      const auto found = watches_.find(id);
      if (found == watches_.end()) continue;
      const Callback callback = found->second;
      callback();
    }
    run_timers();
    // Last, and stop() with it: what call() has handed in is run in any case.
    run_posted();
    const std::lock_guard lock(mutex_);
    if (stopped_ && posted_.empty()) return;
  }
}

void EventLoop::run_posted() {
  std::vector<Callback> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  for (const Callback& callback : posted) callback();
}

void EventLoop::run_timers() {
  const uint64_t now = now_ns();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const Callback callback = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    callback();
  }
}

int EventLoop::timeout_ms() const {
  if (timers_.empty()) return -1;
  const uint64_t now = now_ns();
  const uint64_t next = timers_.begin()->first;
  if (next <= now) return 0;
  return static_cast<int>(std::min<uint64_t>((next - now + 999'999) / 1'000'000, INT_MAX));
}

}  // namespace broker
