// SPDX-License-Identifier: Apache-2.0
#include "broker/event_loop.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "broker/clock.h"

namespace {

class EventLoopTest : public testing::Test {
 protected:
  ~EventLoopTest() override {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }
  void start() {
    thread_ = std::thread([this] { loop_.run(); });
  }

  broker::EventLoop loop_;
  std::thread thread_;
};

TEST_F(EventLoopTest, call_runs_on_the_loop_and_waits) {
  start();
  std::thread::id ran_on;
  EXPECT_TRUE(loop_.call([&] { ran_on = std::this_thread::get_id(); }));
  EXPECT_EQ(ran_on, thread_.get_id());
}

TEST_F(EventLoopTest, call_after_stop_says_so) {
  start();
  loop_.stop();
  thread_.join();
  EXPECT_FALSE(loop_.call([] { FAIL(); }));
}

TEST_F(EventLoopTest, a_watch_may_end_itself_and_others) {
  const broker::UniqueFd first(eventfd(1, EFD_CLOEXEC)), second(eventfd(1, EFD_CLOEXEC));
  int calls = 0;
  broker::EventLoop::WatchId watches[2];
  const auto once = [&] {
    ++calls;
    loop_.unwatch(watches[0]);
    loop_.unwatch(watches[1]);
    loop_.stop();
  };
  watches[0] = loop_.watch(first.get(), once);
  watches[1] = loop_.watch(second.get(), once);
  loop_.run();
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, timers_run_in_order_and_not_early) {
  const uint64_t start_ns = broker::now_ns();
  std::vector<int> order;
  loop_.call_at(start_ns + 20'000'000, [&] {
    order.push_back(2);
    EXPECT_GE(broker::now_ns(), start_ns + 20'000'000);
    loop_.stop();
  });
  loop_.call_at(start_ns + 10'000'000, [&] { order.push_back(1); });
  loop_.run();
  EXPECT_EQ(order, (std::vector{1, 2}));
}

}  // namespace
