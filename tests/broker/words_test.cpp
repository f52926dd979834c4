// SPDX-License-Identifier: Apache-2.0
//
// What the broker writes into and reads out of a slice's shared memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "broker/gate_line.h"
#include "broker/mapping_guard.h"
#include "broker/reconcile.h"
#include "broker/work_sum.h"

namespace {

using limiter::Mode;

class GateLineTest : public testing::Test {
 protected:
  void write(Mode mode, uint64_t deadline_ns = 0, bool others_wait = false, bool others_run = false) {
    broker::write_gate(gate_, {1, mode, deadline_ns, others_wait, others_run}, 7);
  }
  shm::Gate gate_ = {};
};

TEST_F(GateLineTest, each_change_is_a_new_epoch_and_grant) {
  write(Mode::kOpen);
  EXPECT_EQ(gate_.gate.load(), shm::gate_word(shm::kGateOpen, 1));
  EXPECT_EQ(gate_.grant.load(), 1u);
  write(Mode::kTurn, 100);
  EXPECT_EQ(gate_.gate.load(), shm::gate_word(shm::kGateShut, 2));
  EXPECT_EQ(gate_.grant.load(), 2u);
  EXPECT_EQ(gate_.mode.load(), shm::kTurn);
  EXPECT_EQ(gate_.deadline_ns.load(), 100u);
  EXPECT_EQ(gate_.run_ahead_ns.load(), 7u);
}

TEST_F(GateLineTest, a_grant_or_an_extension_is_a_new_turn_and_a_shortening_is_not) {
  write(Mode::kTurn, shm::kNoDeadline);
  EXPECT_EQ(gate_.turn.load(), 1u);
  write(Mode::kTurn, 500, true);
  EXPECT_EQ(gate_.turn.load(), 1u);
  EXPECT_EQ(gate_.others.load(), shm::kOthersWait);
  write(Mode::kTurn, 900);
  EXPECT_EQ(gate_.turn.load(), 2u);
  write(Mode::kParked);
  EXPECT_EQ(gate_.turn.load(), 2u);
  write(Mode::kTurn, 1000);
  EXPECT_EQ(gate_.turn.load(), 3u);
}

TEST_F(GateLineTest, a_blocked_gate_is_shut) {
  write(Mode::kOpen);
  broker::block_gate(gate_);
  EXPECT_EQ(gate_.mode.load(), shm::kBlocked);
  EXPECT_EQ(gate_.gate.load(), shm::gate_word(shm::kGateShut, 2));
}

class WorkSumTest : public testing::Test {
 protected:
  shm::Work& live(uint32_t slot, uint32_t generation = 0) {
    state_->slots[slot].owner.store(shm::slot_owner(shm::kSlotLive, generation));
    return state_->work[slot];
  }
  limiter::Observation read(uint64_t now_ns, uint32_t turn = 5) {
    return sum_.read(*state_, 8, turn, now_ns);
  }

  std::unique_ptr<shm::State> state_ = std::make_unique<shm::State>();
  broker::WorkSum sum_;
};

TEST_F(WorkSumTest, adds_up_the_living_and_ignores_the_dead) {
  live(0).contexts = 1;
  live(3).contexts = 2;
  live(3).waiting = 4;
  state_->work[5].waiting = 1;
  state_->work[5].contexts = 100;
  const limiter::Observation seen = read(1000);
  EXPECT_EQ(seen.contexts, 3u);
  EXPECT_TRUE(seen.waiting);
  EXPECT_FALSE(seen.outstanding);
}

TEST_F(WorkSumTest, is_closing_when_nobody_launches_on) {
  live(0).outstanding = 1;
  state_->work[0].closing_turn = 5;
  state_->work[0].drain_expected_ns = 5000;
  EXPECT_TRUE(read(1000).closing);
  EXPECT_EQ(read(1000).drain_expected_ns, 5000u);
  live(1).outstanding = 1;  // has not reached the deadline
  EXPECT_FALSE(read(1000).closing);
  state_->work[1].closing_turn = 5;
  EXPECT_TRUE(read(1000).closing);
  EXPECT_FALSE(read(1000, 6).closing);
}

TEST_F(WorkSumTest, an_expected_drain_stays_what_was_said_once_it_has_passed) {
  live(0).outstanding = 1;
  state_->work[0].closing_turn = 5;
  state_->work[0].drain_expected_ns = 20'000'000'000;
  EXPECT_EQ(read(19'000'000'000).drain_expected_ns, 20'000'000'000u);
  EXPECT_EQ(read(22'000'000'000).drain_expected_ns, 20'000'000'000u);
  state_->work[0].drain_expected_ns = 1;
  EXPECT_EQ(read(23'000'000'000).drain_expected_ns, 13'000'000'000u);
}

TEST_F(WorkSumTest, what_a_process_got_stays_counted_when_its_slot_is_taken_again) {
  read(1'000'000'000);
  live(0).occupied_ns = 100;
  EXPECT_EQ(read(2'000'000'000).occupied_ns, 100u);
  live(0, 1).occupied_ns = 30;
  EXPECT_EQ(read(3'000'000'000).occupied_ns, 130u);
}

TEST_F(WorkSumTest, active_time_goes_on_while_work_is_outstanding) {
  live(0).active_ns = 0;
  read(1'000);
  state_->work[0].outstanding = 1;
  state_->work[0].active_at_ns = 1'200;
  EXPECT_EQ(read(2'000).active_ns, 800u);
  EXPECT_EQ(read(3'000).active_ns, 1'800u);
  state_->work[0].active_ns = 2'100;
  state_->work[0].outstanding = 0;
  EXPECT_EQ(read(4'000).active_ns, 2'100u);
  EXPECT_EQ(read(5'000).active_ns, 2'100u);
  // Two at once are no more than the time that passed.
  state_->work[0].active_ns = 3'000;
  live(1).active_ns = 900;
  EXPECT_EQ(read(6'000).active_ns, 3'100u);
}

TEST_F(WorkSumTest, numbers_out_of_this_world_are_clamped) {
  read(1'000'000'000);
  live(0).occupied_ns = ~0ull;
  state_->work[0].active_ns = ~0ull;
  state_->work[0].drained_ns = ~0ull;
  state_->work[0].contexts = ~0u;
  state_->work[0].closing_turn = 5;
  state_->work[0].waiting = ~0u;
  state_->work[0].drain_expected_ns = ~0ull;
  const limiter::Observation seen = read(2'000'000'000);
  EXPECT_LE(seen.occupied_ns, 1'250'000'000u);
  EXPECT_LE(seen.active_ns, 1'000'000'000u);
  EXPECT_EQ(seen.drained_ns, 2'000'000'000u);
  EXPECT_LE(seen.contexts, 1024u);
  EXPECT_LE(seen.drain_expected_ns, 12'000'000'000u);
  EXPECT_NO_THROW(sum_.read(*state_, ~0u, 5, 2'000'000'001));
}

limiter::SlotUse use(uint64_t held, uint64_t managed, uint64_t releases) {
  limiter::SlotUse use = {};
  use.held_bytes = held;
  use.managed_bytes = managed;
  use.releases = releases;
  return use;
}

TEST(MeasureTest, overhead_is_what_the_driver_lists_beyond_what_is_accounted_for) {
  EXPECT_EQ(broker::measure({}, 0, use(1000, 0, 0), 1500).overhead_bytes, 500u);
  EXPECT_EQ(broker::measure({}, 0, use(1000, 400, 0), 1500).overhead_bytes, 900u);
  EXPECT_EQ(broker::measure({}, 0, use(1000, 0, 0), 0).overhead_bytes, 0u);
  EXPECT_EQ(broker::measure({}, 0, use(1000, 2000, 0), 100).overhead_bytes, 100u);
}

TEST(MeasureTest, it_rises_at_once_and_falls_only_after_a_release) {
  const broker::Measurement first = broker::measure({}, 0, use(0, 0, 3), 500);
  EXPECT_EQ(broker::measure(first, 0, use(0, 0, 3), 700).overhead_bytes, 700u);
  EXPECT_EQ(broker::measure(first, 0, use(200, 0, 3), 500).overhead_bytes, 500u);
  EXPECT_EQ(broker::measure(first, 0, use(200, 0, 4), 500).overhead_bytes, 300u);
  EXPECT_EQ(broker::measure(first, 1, use(0, 0, 3), 100).overhead_bytes, 100u);  // the slot's next process
}

TEST(MeasureTest, without_a_release_what_was_listed_before_is_still_charged) {
  const broker::Measurement first = broker::measure({}, 0, use(0, 0, 0), 500);
  EXPECT_EQ(broker::measure(first, 0, use(200, 0, 0), 500).excess_bytes, 0u);
  const broker::Measurement second = broker::measure(first, 0, use(200, 0, 3), 500);
  EXPECT_EQ(broker::measure(second, 0, use(300, 0, 3), 500).excess_bytes, 100u);
}

TEST(MeasureTest, what_pools_may_have_lost_unseen_is_excess_and_the_rest_of_a_fall_is_overhead) {
  const broker::Measurement first = broker::measure({}, 0, use(0, 0, 3), 500);
  limiter::SlotUse pools = use(200, 0, 4);
  pools.pooled_bytes = 200;
  const broker::Measurement shrunk = broker::measure(first, 0, pools, 550);
  EXPECT_EQ(shrunk.overhead_bytes, 500u);
  EXPECT_EQ(shrunk.excess_bytes, 150u);
  EXPECT_EQ(broker::measure(first, 0, pools, 900).overhead_bytes, 700u);
  EXPECT_EQ(broker::measure(first, 0, pools, 900).excess_bytes, 0u);
  const broker::Measurement fallen = broker::measure(first, 0, pools, 100);
  EXPECT_EQ(fallen.overhead_bytes, 100u);
  EXPECT_EQ(fallen.excess_bytes, 200u);
  EXPECT_EQ(broker::measure(first, 0, use(0, 0, 4), 300).overhead_bytes, 300u);
}

TEST(ReconcilerTest, looks_become_rare_and_rarer_still_where_nobody_is_attached) {
  constexpr uint64_t kSecond = 1'000'000'000;
  uint64_t attached = kSecond;
  uint64_t idle = kSecond;
  uint64_t idle_hour_ns = 0;
  int idle_looks = 0;
  for (; idle_hour_ns < 3600 * kSecond; ++idle_looks) {
    idle_hour_ns += idle;
    attached = broker::next_interval_ns(attached, true);
    idle = broker::next_interval_ns(idle, false);
  }
  EXPECT_EQ(attached, 30 * kSecond);
  EXPECT_LE(idle_looks, 16);
  EXPECT_EQ(broker::next_interval_ns(idle, true), 30 * kSecond);
}

TEST(MappingGuardTest, a_file_cut_under_the_mapping_reads_as_zeros) {
  char path[] = "/tmp/cuslice-guard-XXXXXX";
  const int file = mkstemp(path);
  ASSERT_GE(file, 0);
  unlink(path);
  constexpr size_t kBytes = 1 << 16;
  ASSERT_EQ(ftruncate(file, kBytes), 0);
  auto* const mapping =
      static_cast<volatile uint8_t*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  {
    const broker::MappingGuard guard(const_cast<uint8_t*>(mapping), kBytes);
    mapping[kBytes - 1] = 7;
    EXPECT_FALSE(guard.damaged());
    ASSERT_EQ(ftruncate(file, 0), 0);
    EXPECT_EQ(mapping[kBytes - 1], 0);
    EXPECT_TRUE(guard.damaged());
    mapping[0] = 1;
  }
  munmap(const_cast<uint8_t*>(mapping), kBytes);
  close(file);
}

}  // namespace
