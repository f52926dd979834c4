// SPDX-License-Identifier: Apache-2.0
#include "limiter/ledger.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using limiter::Reservation;
using limiter::SlotRef;

constexpr uint64_t kMiB = 1 << 20;

limiter::ProcessIdentity identity(uint32_t pid) { return {pid, 1, 1, "test"}; }

// A slice in anonymous shared memory: forked children see the same.
class Ledger : public testing::Test {
 protected:
  Ledger() {
    const int mode = MAP_SHARED | MAP_ANONYMOUS;
    limits_ =
        static_cast<shm::Limits*>(mmap(nullptr, sizeof(shm::Limits), PROT_READ | PROT_WRITE, mode, -1, 0));
    state_ = static_cast<shm::State*>(mmap(nullptr, sizeof(shm::State), PROT_READ | PROT_WRITE, mode, -1, 0));
    limits_->header.gpu_count = 1;
    limits_->gpus[0].quota_bytes = 100 * kMiB;
    limits_->gpus[0].context_bytes = 10 * kMiB;
  }
  ~Ledger() override {
    munmap(limits_, sizeof(shm::Limits));
    munmap(state_, sizeof(shm::State));
  }

  SlotRef join(uint32_t pid = 1) {
    SlotRef slot = {};
    EXPECT_TRUE(limiter::take_slot(*state_, identity(pid), &slot));
    return slot;
  }
  Reservation reserve(SlotRef slot, uint64_t bytes) {
    return limiter::reserve(*limits_, *state_, 0, slot, bytes);
  }
  void release(SlotRef slot, uint64_t bytes) { limiter::release(*state_, 0, slot, bytes); }
  limiter::Usage usage() const { return limiter::usage(*limits_, *state_, 0); }

  shm::Limits* limits_;
  shm::State* state_;
};

TEST_F(Ledger, grants_up_to_the_quota_and_not_a_byte_more) {
  const SlotRef slot = join();
  EXPECT_EQ(reserve(slot, 100 * kMiB), Reservation::kGranted);
  EXPECT_EQ(reserve(slot, 1), Reservation::kRefused);
  release(slot, kMiB);
  EXPECT_EQ(reserve(slot, kMiB), Reservation::kGranted);
  EXPECT_EQ(usage().free_bytes(), 0u);
}

TEST_F(Ledger, refusal_changes_nothing) {
  const SlotRef slot = join();
  ASSERT_EQ(reserve(slot, 60 * kMiB), Reservation::kGranted);
  EXPECT_EQ(reserve(slot, 60 * kMiB), Reservation::kRefused);
  EXPECT_EQ(usage().held_bytes, 60 * kMiB);
  EXPECT_EQ(state_->ledger[0][slot.slot].want.load() & shm::kLedgerBytesMask, 0u);
}

TEST_F(Ledger, absurd_sizes_are_refused) {
  const SlotRef slot = join();
  EXPECT_EQ(reserve(slot, UINT64_MAX), Reservation::kRefused);
  EXPECT_EQ(reserve(slot, 1ull << 48), Reservation::kRefused);
  EXPECT_EQ(reserve(slot, (1ull << 48) - 1), Reservation::kRefused);
  EXPECT_EQ(usage().held_bytes, 0u);
}

TEST_F(Ledger, releasing_too_much_saturates) {
  const SlotRef slot = join();
  ASSERT_EQ(reserve(slot, kMiB), Reservation::kGranted);
  release(slot, 5 * kMiB);
  EXPECT_EQ(usage().held_bytes, 0u);
  EXPECT_EQ(usage().free_bytes(), 100 * kMiB);
}

TEST_F(Ledger, a_lowered_quota_refuses_and_free_is_zero_not_negative) {
  const SlotRef slot = join();
  ASSERT_EQ(reserve(slot, 50 * kMiB), Reservation::kGranted);
  limits_->gpus[0].quota_bytes = 20 * kMiB;
  EXPECT_EQ(usage().free_bytes(), 0u);
  EXPECT_EQ(reserve(slot, 1), Reservation::kRefused);
  release(slot, 40 * kMiB);
  EXPECT_EQ(reserve(slot, 10 * kMiB), Reservation::kGranted);
}

TEST_F(Ledger, first_context_is_charged_before_it_exists_and_once) {
  const SlotRef slot = join();
  ASSERT_EQ(reserve(slot, 95 * kMiB), Reservation::kGranted);
  EXPECT_EQ(limiter::reserve_context(*limits_, *state_, 0, slot), Reservation::kRefused);
  release(slot, 5 * kMiB);
  EXPECT_EQ(limiter::reserve_context(*limits_, *state_, 0, slot), Reservation::kGranted);
  EXPECT_EQ(limiter::reserve_context(*limits_, *state_, 0, slot), Reservation::kGranted);
  EXPECT_EQ(usage().used_bytes(), 100 * kMiB);
}

TEST_F(Ledger, measured_overhead_takes_the_place_of_the_floor) {
  const SlotRef slot = join();
  ASSERT_EQ(limiter::reserve_context(*limits_, *state_, 0, slot), Reservation::kGranted);
  limits_->overhead_bytes[0][slot.slot] = 4 * kMiB;
  EXPECT_EQ(usage().overhead_bytes, 10 * kMiB);
  EXPECT_TRUE(limiter::clear_context_floor(*state_, 0, slot, 10 * kMiB));
  EXPECT_EQ(usage().overhead_bytes, 4 * kMiB);
}

TEST_F(Ledger, what_the_driver_is_expected_to_take_is_charged_on_top_until_it_is_measured) {
  const SlotRef slot = join();
  ASSERT_EQ(limiter::reserve_context(*limits_, *state_, 0, slot), Reservation::kGranted);
  EXPECT_EQ(limiter::reserve_overhead(*limits_, *state_, 0, slot, 91 * kMiB), Reservation::kRefused);
  ASSERT_EQ(limiter::reserve_overhead(*limits_, *state_, 0, slot, 20 * kMiB), Reservation::kGranted);
  EXPECT_EQ(usage().used_bytes(), 30 * kMiB);
  limits_->overhead_bytes[0][slot.slot] = 12 * kMiB;
  EXPECT_TRUE(limiter::clear_context_floor(*state_, 0, slot, 30 * kMiB));
  EXPECT_EQ(usage().used_bytes(), 12 * kMiB);
  // On top of what is measured, and off again before the next measurement.
  ASSERT_EQ(limiter::reserve_overhead(*limits_, *state_, 0, slot, 5 * kMiB), Reservation::kGranted);
  EXPECT_EQ(usage().used_bytes(), 17 * kMiB);
  limiter::give_overhead(*state_, 0, slot, 5 * kMiB);
  EXPECT_EQ(usage().used_bytes(), 12 * kMiB);
}

TEST_F(Ledger, a_floor_that_was_raised_while_it_was_measured_stays) {
  const SlotRef slot = join();
  ASSERT_EQ(limiter::reserve_context(*limits_, *state_, 0, slot), Reservation::kGranted);
  ASSERT_EQ(limiter::reserve_overhead(*limits_, *state_, 0, slot, 20 * kMiB), Reservation::kGranted);
  EXPECT_FALSE(limiter::clear_context_floor(*state_, 0, slot, 10 * kMiB));
  EXPECT_EQ(usage().used_bytes(), 30 * kMiB);
}

TEST_F(Ledger, orphaned_bytes_are_not_granted_again) {
  const SlotRef slot = join();
  limits_->gpus[0].orphaned_bytes = 30 * kMiB;
  EXPECT_EQ(reserve(slot, 71 * kMiB), Reservation::kRefused);
  EXPECT_EQ(reserve(slot, 70 * kMiB), Reservation::kGranted);
}

TEST_F(Ledger, a_quarantined_slice_gets_nothing) {
  const SlotRef slot = join();
  limits_->header.flags = shm::kQuarantined;
  EXPECT_EQ(reserve(slot, 1), Reservation::kRefused);
}

TEST_F(Ledger, reaping_gives_everything_back_and_is_idempotent) {
  const SlotRef dead = join(7);
  const SlotRef alive = join(8);
  ASSERT_EQ(reserve(dead, 60 * kMiB), Reservation::kGranted);
  ASSERT_EQ(reserve(alive, 30 * kMiB), Reservation::kGranted);
  limiter::reap_slot(*state_, dead.slot, dead.generation);
  limiter::reap_slot(*state_, dead.slot, dead.generation);
  EXPECT_EQ(usage().held_bytes, 30 * kMiB);
  const SlotRef next = join(9);
  EXPECT_EQ(next.slot, dead.slot);
  EXPECT_NE(next.generation, dead.generation);
  ASSERT_EQ(reserve(next, 5 * kMiB), Reservation::kGranted);
  // A reaper that comes late, for the dead incarnation, leaves the new one alone.
  limiter::reap_slot(*state_, dead.slot, dead.generation);
  EXPECT_EQ(usage().held_bytes, 35 * kMiB);
}

TEST_F(Ledger, a_process_taken_for_dead_can_change_nothing) {
  const SlotRef slot = join();
  ASSERT_EQ(reserve(slot, 10 * kMiB), Reservation::kGranted);
  limiter::reap_slot(*state_, slot.slot, slot.generation);
  const SlotRef next = join();
  EXPECT_EQ(reserve(slot, kMiB), Reservation::kStale);
  release(slot, kMiB);
  limiter::add_managed(*state_, 0, slot, 1000);
  EXPECT_EQ(usage().held_bytes, 0u);
  EXPECT_EQ(limiter::slot_use(*state_, 0, next.slot).managed_bytes, 0u);
}

TEST_F(Ledger, is_quiescent_only_where_no_call_was_under_way_between_two_looks) {
  const SlotRef slot = join();
  const auto look = [&] { return limiter::slot_use(*state_, 0, slot.slot); };
  limiter::SlotUse before = look();
  EXPECT_TRUE(limiter::was_quiescent(before, look()));

  limiter::begin_call(*state_, 0, slot);
  EXPECT_FALSE(limiter::was_quiescent(before, look())) << "began in between";
  before = look();
  EXPECT_FALSE(limiter::was_quiescent(before, look())) << "under way all the time";
  limiter::begin_call(*state_, 0, slot);
  limiter::end_call(*state_, 0, slot);
  EXPECT_FALSE(limiter::was_quiescent(look(), look())) << "one of two has ended";
  limiter::end_call(*state_, 0, slot);
  EXPECT_FALSE(limiter::was_quiescent(before, look())) << "ended in between";
  before = look();
  EXPECT_TRUE(limiter::was_quiescent(before, look()));

  limiter::begin_call(*state_, 0, slot);
  limiter::end_call(*state_, 0, slot);
  EXPECT_FALSE(limiter::was_quiescent(before, look())) << "began and ended in between";
}

TEST_F(Ledger, the_count_of_ended_calls_wraps_into_nothing_else) {
  const SlotRef slot = join();
  state_->ledger[0][slot.slot].calls = shm::kLedgerBytesMask & ~shm::kCallsInFlightMask;
  limiter::begin_call(*state_, 0, slot);
  limiter::end_call(*state_, 0, slot);
  EXPECT_EQ(state_->ledger[0][slot.slot].calls.load(), 0u);
}

TEST_F(Ledger, a_process_killed_in_a_call_leaves_none_to_the_slots_next_owner) {
  const SlotRef dead = join(7);
  limiter::begin_call(*state_, 0, dead);
  limiter::add_pooled(*state_, 0, dead, kMiB);
  limiter::reap_slot(*state_, dead.slot, dead.generation);
  const SlotRef next = join(8);
  ASSERT_EQ(next.slot, dead.slot);
  const limiter::SlotUse use = limiter::slot_use(*state_, 0, next.slot);
  EXPECT_TRUE(limiter::was_quiescent(use, use));
  EXPECT_EQ(use.pooled_bytes, 0u);
  limiter::end_call(*state_, 0, dead);  // it was not dead after all
  EXPECT_TRUE(limiter::was_quiescent(use, limiter::slot_use(*state_, 0, next.slot)));
}

TEST_F(Ledger, an_excess_is_forgiven_until_the_next_call_begins) {
  const SlotRef slot = join();
  const SlotRef peer = join(2);
  ASSERT_EQ(reserve(slot, 60 * kMiB), Reservation::kGranted);
  limits_->overhead_bytes[0][slot.slot] = 10 * kMiB;
  limiter::begin_call(*state_, 0, slot);
  limiter::end_call(*state_, 0, slot);
  limiter::forgive(*state_, 0, slot.slot, limiter::slot_use(*state_, 0, slot.slot), 65 * kMiB);
  EXPECT_EQ(usage().used_bytes(), 5 * kMiB);
  EXPECT_EQ(limiter::slot_charge(*limits_, *state_, 0, slot.slot), 5 * kMiB);
  EXPECT_EQ(reserve(peer, 95 * kMiB), Reservation::kGranted);

  // Its pools may be what they were when that call ends: they find their charge, and nobody gets more.
  limiter::begin_call(*state_, 0, slot);
  EXPECT_EQ(usage().used_bytes(), 165 * kMiB);
  EXPECT_EQ(reserve(slot, 1), Reservation::kRefused);
  EXPECT_EQ(reserve(peer, 1), Reservation::kRefused);
  limiter::end_call(*state_, 0, slot);
  EXPECT_EQ(usage().used_bytes(), 165 * kMiB);
}

TEST_F(Ledger, what_is_released_is_not_forgiven_as_well) {
  const SlotRef slot = join();
  ASSERT_EQ(reserve(slot, 60 * kMiB), Reservation::kGranted);
  limiter::forgive(*state_, 0, slot.slot, limiter::slot_use(*state_, 0, slot.slot), 20 * kMiB);
  release(slot, 20 * kMiB);
  EXPECT_EQ(usage().used_bytes(), 40 * kMiB);
}

TEST_F(Ledger, an_excess_is_not_forgiven_to_the_slots_next_owner) {
  const SlotRef slot = join();
  ASSERT_EQ(reserve(slot, 60 * kMiB), Reservation::kGranted);
  const limiter::SlotUse seen = limiter::slot_use(*state_, 0, slot.slot);
  limiter::reap_slot(*state_, slot.slot, slot.generation);
  const SlotRef next = join();
  ASSERT_EQ(next.slot, slot.slot);
  ASSERT_EQ(reserve(next, 60 * kMiB), Reservation::kGranted);
  limiter::forgive(*state_, 0, slot.slot, seen, 60 * kMiB);
  EXPECT_EQ(usage().used_bytes(), 60 * kMiB);
}

TEST_F(Ledger, a_slot_that_nobody_wrote_himself_into_can_be_reaped_and_another_not) {
  const SlotRef written = join();
  EXPECT_FALSE(limiter::reap_unwritten_slot(*state_, written.slot, written.generation));
  EXPECT_EQ(state_->slots[written.slot].owner, shm::slot_owner(shm::kSlotLive, written.generation));
  limiter::reap_slot(*state_, written.slot, written.generation);
  // Killed in between: in the slot's second life, and in another's first.
  for (const SlotRef slot : {SlotRef{written.slot, written.generation + 1}, SlotRef{written.slot + 1, 0}}) {
    shm::Shared<uint32_t>& owner = state_->slots[slot.slot].owner;
    owner = shm::slot_owner(shm::kSlotLive, slot.generation);
    EXPECT_TRUE(limiter::reap_unwritten_slot(*state_, slot.slot, slot.generation));
    EXPECT_EQ(owner, shm::slot_owner(shm::kSlotFree, slot.generation + 1));
  }
}

TEST_F(Ledger, an_owner_that_goes_on_after_its_slot_was_reaped_writes_over_nothing_of_the_next_owners) {
  SlotRef held_up = {};
  ASSERT_TRUE(limiter::claim_slot(*state_, 0, &held_up));
  ASSERT_TRUE(limiter::reap_unwritten_slot(*state_, held_up.slot, held_up.generation));
  SlotRef next = {};
  ASSERT_TRUE(limiter::take_slot(*state_, {8, 80, 800, "next"}, &next));
  ASSERT_EQ(next.slot, held_up.slot);
  state_->work[next.slot].waiting = 3;

  EXPECT_FALSE(limiter::settle_slot(*state_, held_up, {7, 70, 700, "held up"}));
  const shm::Slot& slot = state_->slots[next.slot];
  const uint32_t owner = slot.owner;
  EXPECT_EQ(owner, shm::slot_owner(shm::kSlotLive, next.generation));
  EXPECT_EQ(shm::slot_pid(slot, owner), 8u);
  EXPECT_EQ(shm::slot_value(slot.pid_namespace, owner), 80u);
  EXPECT_EQ(shm::slot_value(slot.start_time, owner), 800u);
  char name[shm::kNameBytes];
  shm::slot_name(slot, owner, name);
  EXPECT_STREQ(name, "next");
  EXPECT_EQ(state_->work[next.slot].waiting, 3u);
}

TEST_F(Ledger, of_a_slots_former_owner_nothing_is_read) {
  SlotRef slot = {};
  ASSERT_TRUE(limiter::take_slot(*state_, {7, 70, 700, "fifteen letters"}, &slot));
  shm::Slot& entry = state_->slots[slot.slot];
  char name[shm::kNameBytes];
  shm::slot_name(entry, entry.owner, name);
  EXPECT_STREQ(name, "fifteen letters");
  limiter::reap_slot(*state_, slot.slot, slot.generation);
  SlotRef next = {};
  ASSERT_TRUE(limiter::claim_slot(*state_, 0, &next));
  const uint32_t owner = entry.owner;
  EXPECT_EQ(shm::slot_pid(entry, owner), 0u);
  EXPECT_EQ(shm::slot_value(entry.start_time, owner), 0u);
  shm::slot_name(entry, owner, name);
  EXPECT_EQ(std::string(name, sizeof name), std::string(sizeof name, '\0'));
}

TEST_F(Ledger, a_reaper_killed_before_its_last_step_leaves_a_slot_that_is_known_for_it) {
  const SlotRef slot = join(7);
  shm::Slot& entry = state_->slots[slot.slot];
  entry.owner = shm::slot_owner(shm::kSlotReaping, slot.generation);
  EXPECT_FALSE(limiter::is_nearly_reaped(entry, entry.owner)) << "its owner is to be found";
  limiter::reap_slot(*state_, slot.slot, slot.generation);
  entry.owner = shm::slot_owner(shm::kSlotReaping, slot.generation);
  EXPECT_TRUE(limiter::is_nearly_reaped(entry, entry.owner));
  limiter::reap_slot(*state_, slot.slot, slot.generation);
  EXPECT_EQ(entry.owner, shm::slot_owner(shm::kSlotFree, slot.generation + 1));
  EXPECT_FALSE(limiter::is_nearly_reaped(entry, entry.owner));
}

TEST_F(Ledger, a_slot_whose_words_are_damaged_is_passed_over) {
  state_->slots[0].start_time = uint64_t{77} << shm::kGenerationShift;
  EXPECT_EQ(join().slot, 1u);
  EXPECT_EQ(shm::slot_state(state_->slots[0].owner), shm::kSlotFree);
}

TEST_F(Ledger, owners_that_a_reaper_took_for_dead_while_they_wrote_themselves_down_own_other_slots) {
  constexpr int kOwners = 4;
  constexpr int kRounds = 20'000;
  std::atomic<bool> ended = false;
  std::thread reaper([&] {
    while (!ended) {
      for (uint32_t slot = 0; slot < 2 * kOwners; slot++) {
        const uint32_t owner = state_->slots[slot].owner;
        const uint32_t generation = shm::slot_generation(owner);
        if (shm::slot_state(owner) != shm::kSlotLive || shm::slot_pid(state_->slots[slot], owner) != 0)
          continue;
        limiter::reap_unwritten_slot(*state_, slot, generation);
      }
    }
  });
  std::vector<std::thread> owners;
  for (uint32_t pid = 1; pid <= kOwners; pid++) {
    owners.emplace_back([&, pid] {
      for (int round = 0; round < kRounds; round++) {
        SlotRef slot = {};
        ASSERT_TRUE(limiter::take_slot(*state_, {pid, pid, pid, "test"}, &slot));
        // A reaper that looked just before may have it for a moment, and puts it back.
        const uint32_t owner = state_->slots[slot.slot].owner;
        ASSERT_NE(shm::slot_state(owner), shm::kSlotFree);
        ASSERT_EQ(shm::slot_generation(owner), slot.generation);
        ASSERT_EQ(shm::slot_pid(state_->slots[slot.slot], owner), pid);
        ASSERT_EQ(shm::slot_value(state_->slots[slot.slot].pid_namespace, owner), pid);
        ASSERT_EQ(shm::slot_value(state_->slots[slot.slot].start_time, owner), pid);
        limiter::reap_slot(*state_, slot.slot, slot.generation);
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
  ended = true;
  reaper.join();
}

TEST_F(Ledger, what_was_not_taken_counts_as_no_release) {
  const SlotRef slot = join();
  ASSERT_EQ(reserve(slot, 60 * kMiB), Reservation::kGranted);
  limiter::cancel(*state_, 0, slot, 20 * kMiB);
  EXPECT_EQ(usage().held_bytes, 40 * kMiB);
  EXPECT_EQ(limiter::slot_use(*state_, 0, slot.slot).releases, 0u);
  release(slot, 20 * kMiB);
  EXPECT_EQ(limiter::slot_use(*state_, 0, slot.slot).releases, 1u);
}

TEST_F(Ledger, slots_run_out_with_a_count_and_come_back) {
  std::vector<SlotRef> slots;
  for (int i = 0; i < shm::kMaxSlots; i++) slots.push_back(join(i + 1));
  SlotRef none = {};
  EXPECT_FALSE(limiter::take_slot(*state_, identity(9999), &none));
  EXPECT_EQ(state_->counters[shm::kSlotsFull].load(), 1u);
  limiter::reap_slot(*state_, slots[100].slot, slots[100].generation);
  EXPECT_TRUE(limiter::take_slot(*state_, identity(9999), &none));
  EXPECT_EQ(none.slot, 100u);
}

TEST_F(Ledger, garbage_in_peers_lines_does_not_wrap) {
  const SlotRef slot = join();
  for (uint32_t peer = 1; peer < shm::kMaxSlots; peer++) {
    state_->ledger[0][peer].held = UINT64_MAX;
    state_->ledger[0][peer].want = UINT64_MAX;
    state_->ledger[0][peer].context_floor = UINT64_MAX;
  }
  state_->header.slots_high = UINT32_MAX;
  EXPECT_EQ(reserve(slot, 1), Reservation::kRefused);
  EXPECT_EQ(usage().free_bytes(), 0u);
}

TEST_F(Ledger, garbage_that_adds_up_to_2_48_is_not_taken_for_nothing) {
  const SlotRef slot = join();
  for (const uint32_t peer : {1, 2}) state_->ledger[0][peer].held = uint64_t{1} << 47;
  state_->header.slots_high = 3;
  EXPECT_EQ(reserve(slot, 1), Reservation::kRefused);
  state_->ledger[0][2].held = 0;
  limits_->overhead_bytes[0][2] = uint64_t{1} << 47;
  EXPECT_EQ(reserve(slot, 1), Reservation::kRefused);
}

TEST_F(Ledger, threads_never_pass_the_quota) {
  constexpr int kThreads = 8;
  std::atomic<int64_t> granted = 0;
  std::atomic<int64_t> highest = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) {
    // Two threads per process, four processes.
    const SlotRef slot = t % 2 == 0 ? join(t + 1) : SlotRef{static_cast<uint32_t>(t / 2), 0};
    threads.emplace_back([&, slot, t] {
      std::mt19937 random(t);
      std::vector<uint64_t> mine;
      for (int i = 0; i < 30'000; i++) {
        const uint64_t bytes = (1 + random() % 30) * kMiB;
        if (random() % 2 == 0 && !mine.empty()) {
          granted -= static_cast<int64_t>(mine.back());
          release(slot, mine.back());
          mine.pop_back();
        } else if (reserve(slot, bytes) == Reservation::kGranted) {
          const int64_t now = granted += static_cast<int64_t>(bytes);
          int64_t seen = highest;
          while (now > seen && !highest.compare_exchange_weak(seen, now)) {
          }
          mine.push_back(bytes);
        }
      }
      for (const uint64_t bytes : mine) {
        granted -= static_cast<int64_t>(bytes);
        release(slot, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(highest.load(), static_cast<int64_t>(100 * kMiB));
  EXPECT_GT(highest.load(), static_cast<int64_t>(70 * kMiB));
  EXPECT_EQ(usage().held_bytes, 0u);
}

TEST_F(Ledger, two_processes_that_race_for_the_last_bytes_get_them_once) {
  // Each wants 60 of 100: exactly one may have it, in every round, and one must.
  struct Round {
    std::atomic<int> ready, won, done;
  };
  constexpr int kRounds = 1000;
  auto* rounds = static_cast<Round*>(
      mmap(nullptr, sizeof(Round) * kRounds, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<pid_t> children;
  for (int p = 0; p < 2; p++) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      const SlotRef slot = join(p + 1);
      for (int i = 0; i < kRounds; i++) {
        rounds[i].ready++;
        while (rounds[i].ready < 2) sched_yield();
        const bool won = reserve(slot, 60 * kMiB) == Reservation::kGranted;
        if (won) rounds[i].won++;
        rounds[i].done++;
        while (rounds[i].done < 2) sched_yield();
        if (won) release(slot, 60 * kMiB);
      }
      _exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  for (int i = 0; i < kRounds; i++) ASSERT_EQ(rounds[i].won.load(), 1) << "round " << i;
  munmap(rounds, sizeof(Round) * kRounds);
}

TEST_F(Ledger, kill_at_any_instant_leaves_nothing_after_reaping) {
  for (int round = 0; round < 200; round++) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      const SlotRef slot = join(2);
      for (uint64_t i = 0;; i++) {
        if (reserve(slot, (1 + i % 7) * kMiB) == Reservation::kGranted) release(slot, (1 + i % 7) * kMiB);
      }
    }
    usleep(200 + (round * 37) % 900);
    kill(pid, SIGKILL);
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
    const uint32_t owner = state_->slots[0].owner.load();
    if (shm::slot_state(owner) != shm::kSlotFree) limiter::reap_slot(*state_, 0, shm::slot_generation(owner));
    ASSERT_EQ(usage().used_bytes(), 0u) << "round " << round;
    const SlotRef slot = join(1);
    ASSERT_EQ(reserve(slot, 100 * kMiB), Reservation::kGranted) << "round " << round;
    limiter::reap_slot(*state_, slot.slot, slot.generation);
  }
}

}  // namespace
