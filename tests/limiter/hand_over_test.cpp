// SPDX-License-Identifier: Apache-2.0
//
// The passing of a turn between two slices that always have work, step by step.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "limiter/arbiter.h"

namespace limiter {
namespace {

constexpr uint64_t kUs = 1'000;
constexpr uint64_t kMs = 1'000'000;
constexpr SliceKey kSlices[] = {1, 2};

class HandOverTest : public testing::Test {
 protected:
  struct Side {
    SliceKey key;
    Observation seen;
    Command told = {};
    bool timed() const { return told.mode == Mode::kTurn && told.deadline_ns != UINT64_MAX; }
  };

  HandOverTest() {
    for (size_t i = 0; i < 2; ++i) {
      sides_[i] = {.key = kSlices[i], .seen = {.contexts = 1, .waiting = true}};
      arbiter_.set(kSlices[i], {.gpu_mask = 1, .compute_percent = 50, .compute_limit_percent = 100}, now_ns_);
    }
    // Each launches for as long as it may, and drains at once.
    while (now_ns_ < 2'000 * kMs && !(turns_ >= 10 && in_the_middle_of_a_turn())) {
      now_ns_ += 100 * kUs;
      for (Side& side : sides_) work(side);
      step();
    }
  }

  Side& holder() { return sides_[0].timed() ? sides_[0] : sides_[1]; }
  Side& next() { return sides_[0].timed() ? sides_[1] : sides_[0]; }

  void observe(const Side& side) { arbiter_.observe(side.key, side.seen, now_ns_); }
  void step() {
    std::vector<Command> commands;
    arbiter_.step(now_ns_, &commands);
    for (const Command& command : commands) {
      Side& side = command.slice == kSlices[0] ? sides_[0] : sides_[1];
      const bool new_turn = command.mode == Mode::kTurn &&
                            (side.told.mode != Mode::kTurn || command.deadline_ns != side.told.deadline_ns);
      side.told = command;
      if (new_turn && side.timed()) ++turns_;
    }
  }
  bool in_the_middle_of_a_turn() const {
    const Side& first = sides_[0].timed() ? sides_[0] : sides_[1];
    return sides_[0].timed() != sides_[1].timed() && first.told.deadline_ns > now_ns_ + 2 * kMs;
  }

  Arbiter arbiter_;
  uint64_t now_ns_ = kMs;
  uint64_t turns_ = 0;
  std::array<Side, 2> sides_;

 private:
  void work(Side& side) {
    const bool runs = side.told.mode == Mode::kTurn && now_ns_ < side.told.deadline_ns;
    if (runs) side.seen.active_ns += 100 * kUs;
    if (runs) side.seen.occupied_ns += 100 * kUs;
    if (side.seen.outstanding && !runs) side.seen.drained_ns = now_ns_;
    side.seen.outstanding = runs;
    side.seen.closing = !runs;
    side.seen.drain_expected_ns = side.told.deadline_ns;
    observe(side);
  }
};

// Who rings is looked at; the other one's words are as old as its last ring.
TEST_F(HandOverTest, what_was_said_of_the_last_turn_does_not_end_the_one_that_begins_ahead) {
  ASSERT_TRUE(in_the_middle_of_a_turn());
  Side& first = holder();
  Side& second = next();
  ASSERT_TRUE(second.seen.closing);  // its last turn

  now_ns_ = first.told.deadline_ns - 50 * kUs;
  first.seen.closing = first.seen.outstanding = true;
  first.seen.drain_expected_ns = now_ns_ + 100 * kUs;
  observe(first);
  const uint64_t turns = arbiter_.account(second.key).turns;
  step();
  ASSERT_TRUE(second.timed()) << "not granted ahead";
  const uint64_t deadline_ns = second.told.deadline_ns;

  now_ns_ += 100 * kUs;
  first.seen.outstanding = false;
  first.seen.drained_ns = now_ns_;
  observe(first);
  step();
  EXPECT_TRUE(second.timed());
  EXPECT_EQ(second.told.deadline_ns, deadline_ns);
  EXPECT_EQ(arbiter_.account(second.key).turns, turns + 1);
}

}  // namespace
}  // namespace limiter
