// SPDX-License-Identifier: Apache-2.0
//
// All interleavings of the ledger's protocol (limiter/ledger.h) by exhaustive search: processes that reserve
// and free, a SIGKILL between any two accesses to shared memory, one or two reapers that may run late, and
// slots taken again by a new process. Every shared load, store and read-modify-write is one step.
//
// What must hold in each state: what is granted never passes the quota. And in each quiet state (nobody in
// the middle of anything, every dead process reaped): what the lines say is what is really held, and no
// request is left behind.
//
// The variants are what one would write instead; the search finds the fault of each, which shows that it
// would find one here.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace {

enum class Variant {
  kProtocol,        // want, scan (want before held), held, want; reaper guarded by the generation
  kHeldBeforeWant,  // the scan loads held before want
  kCheckThenTake,   // no announcement: scan, then take
  kReapUnguarded,   // the reaper stores zeros whatever the generation is
};

constexpr int kProcesses = 3;

struct Line {
  uint8_t held, want, generation;  // held and want carry the generation in memory; here it is one for both
  uint8_t held_generation, want_generation;
  uint8_t owner;  // 0 free, 1 live, 2 reaping
};

enum Step : uint8_t {
  kIdle,
  kAnnounce,
  kScanFirst,
  kScanSecond,
  kTake,
  kWithdrawGranted,
  kAllocate,
  kWithdraw,
  kConfirm,
  kGiveBack,
};

struct Process {
  uint8_t step, index, sum, alive, generation, really_held, operations;
};

struct Reaper {
  uint8_t step, slot, generation;
};

struct World {
  std::array<Line, kProcesses> lines;
  std::array<Process, kProcesses> processes;
  std::array<Reaper, 2> reapers;
  uint8_t kills, births;
};
static_assert(std::has_unique_object_representations_v<World>);

struct Scenario {
  Variant variant;
  int processes, quota, reapers, kills, births, operations;
  std::array<uint8_t, kProcesses> bytes;  // what each process reserves
};

class Search {
 public:
  explicit Search(const Scenario& scenario) : scenario_(scenario) {}

  // Empty: all states are good. Else what is wrong with one.
  std::string run() {
    World world = {};
    for (int i = 0; i < scenario_.processes; i++) {
      world.processes[i].alive = 1;
      world.lines[i].owner = 1;
    }
    visit(world);
    while (!pending_.empty() && fault_.empty()) {
      const World current = pending_.back();
      pending_.pop_back();
      expand(current);
    }
    return fault_;
  }

  size_t states() const { return seen_.size(); }

 private:
  void visit(const World& world) {
    if (!seen_.insert(std::string(reinterpret_cast<const char*>(&world), sizeof world)).second) return;
    check(world);
    pending_.push_back(world);
  }

  void expand(const World& current) {
    for (int i = 0; i < scenario_.processes; i++) {
      World next = current;
      if (advance(next, i)) visit(next);
      next = current;
      if (start_free(next, i)) visit(next);
      next = current;
      if (kill_process(next, i)) visit(next);
      next = current;
      if (give_birth(next, i)) visit(next);
    }
    for (int r = 0; r < scenario_.reapers; r++) {
      for (int slot = 0; slot < scenario_.processes; slot++) {
        World next = current;
        if (reap(next, r, slot)) visit(next);
        if (current.reapers[r].step != 0) break;
      }
    }
  }

  void scan_word(const World& world, Process& process, bool want) const {
    const Line& line = world.lines[process.index];
    process.sum += want ? line.want : line.held;
  }

  // One access of process i. false: it has nothing to do by itself.
  bool advance(World& world, int i) {
    Process& process = world.processes[i];
    Line& mine = world.lines[i];
    const uint8_t bytes = scenario_.bytes[i];
    const bool held_first = scenario_.variant == Variant::kHeldBeforeWant;
    if (!process.alive) return false;
    const auto done = [&] {
      process.step = kIdle;
      process.index = process.sum = 0;
      process.operations++;
    };
    switch (process.step) {
      case kIdle:
        if (process.operations >= scenario_.operations) return false;
        process.step = scenario_.variant == Variant::kCheckThenTake ? kScanFirst : kAnnounce;
        if (process.step == kScanFirst) process.sum = bytes;
        return true;
      case kAnnounce:
        if (mine.want_generation == process.generation) mine.want += bytes;
        process.step = kScanFirst;
        return true;
      case kScanFirst:
        scan_word(world, process, !held_first);
        process.step = kScanSecond;
        return true;
      case kScanSecond:
        scan_word(world, process, held_first);
        process.step = kScanFirst;
        if (++process.index == scenario_.processes) {
          process.index = 0;
          process.step = process.sum <= scenario_.quota ? kTake : kWithdraw;
          process.sum = 0;
          if (process.step == kWithdraw && scenario_.variant == Variant::kCheckThenTake) done();
        }
        return true;
      case kTake:
        if (mine.held_generation == process.generation) mine.held += bytes;
        process.step = scenario_.variant == Variant::kCheckThenTake ? kAllocate : kWithdrawGranted;
        return true;
      case kWithdrawGranted:
        if (mine.want_generation == process.generation) mine.want -= bytes;
        process.step = kAllocate;
        return true;
      case kAllocate:
        process.really_held += bytes;
        done();
        return true;
      case kWithdraw:
        if (mine.want_generation == process.generation) mine.want -= bytes;
        process.step = kConfirm;
        return true;
      case kConfirm:
        scan_word(world, process, false);
        if (++process.index == scenario_.processes) done();
        return true;
      case kGiveBack:
        if (mine.held_generation == process.generation) mine.held -= bytes;
        done();
        return true;
    }
    return false;
  }

  // The driver's own free, which comes before the ledger's.
  bool start_free(World& world, int i) {
    Process& process = world.processes[i];
    if (!process.alive || process.step != kIdle || process.operations >= scenario_.operations) return false;
    if (process.really_held < scenario_.bytes[i]) return false;
    process.really_held -= scenario_.bytes[i];
    process.step = kGiveBack;
    return true;
  }

  bool kill_process(World& world, int i) {
    Process& process = world.processes[i];
    if (!process.alive || world.kills >= scenario_.kills) return false;
    world.kills++;
    process = {};
    return true;
  }

  bool give_birth(World& world, int i) {
    Process& process = world.processes[i];
    if (process.alive || world.births >= scenario_.births || world.lines[i].owner != 0) return false;
    world.births++;
    world.lines[i].owner = 1;
    process = {};
    process.alive = 1;
    process.generation = world.lines[i].generation;
    return true;
  }

  // One access of a reaper; each may be late by any number of the others' steps.
  bool reap(World& world, int r, int slot) {
    Reaper& reaper = world.reapers[r];
    Line& line = world.lines[reaper.step == 0 ? slot : reaper.slot];
    const bool unguarded = scenario_.variant == Variant::kReapUnguarded;
    switch (reaper.step) {
      case 0:
        if (world.processes[slot].alive || line.owner == 0) return false;
        line.owner = 2;
        reaper = {1, static_cast<uint8_t>(slot), line.generation};
        return true;
      case 1:
        if (unguarded || line.held_generation == reaper.generation) {
          line.held = 0;
          line.held_generation = reaper.generation + 1;
        }
        reaper.step = 2;
        return true;
      case 2:
        if (unguarded || line.want_generation == reaper.generation) {
          line.want = 0;
          line.want_generation = reaper.generation + 1;
        }
        reaper.step = 3;
        return true;
      default:
        if (line.owner == 2 && line.generation == reaper.generation) {
          line.owner = 0;
          line.generation++;
        }
        reaper = {};
        return true;
    }
  }

  bool quiet(const World& world) const {
    for (int i = 0; i < scenario_.processes; i++) {
      const Process& process = world.processes[i];
      if (process.alive ? process.step != kIdle : world.lines[i].owner != 0) return false;
    }
    return world.reapers[0].step == 0 && world.reapers[1].step == 0;
  }

  void check(const World& world) {
    int really_held = 0;
    for (const Process& process : world.processes) really_held += process.really_held;
    if (really_held > scenario_.quota) fault_ = "more granted than the quota";
    if (!quiet(world)) return;
    for (int i = 0; i < scenario_.processes; i++) {
      if (world.lines[i].want != 0) fault_ = "a request is left behind";
      if (world.lines[i].held != world.processes[i].really_held) fault_ = "a line does not say what is held";
    }
  }

  const Scenario scenario_;
  std::unordered_set<std::string> seen_;
  std::vector<World> pending_;
  std::string fault_;
};

TEST(LedgerModel, three_processes_and_a_kill_never_pass_the_quota) {
  Search search({Variant::kProtocol, 3, 4, 1, 1, 0, 2, {2, 3, 2}});
  EXPECT_EQ(search.run(), "");
  EXPECT_GT(search.states(), 100'000u);
}

TEST(LedgerModel, two_processes_two_reapers_and_a_slot_taken_again) {
  Search search({Variant::kProtocol, 2, 3, 2, 2, 2, 4, {2, 2, 0}});
  EXPECT_EQ(search.run(), "");
  EXPECT_GT(search.states(), 100'000u);
}

TEST(LedgerModel, finds_the_scan_in_the_wrong_order) {
  Search search({Variant::kHeldBeforeWant, 2, 3, 1, 0, 0, 2, {2, 2, 0}});
  EXPECT_EQ(search.run(), "more granted than the quota");
}

TEST(LedgerModel, finds_check_then_take) {
  Search search({Variant::kCheckThenTake, 2, 3, 1, 0, 0, 1, {2, 2, 0}});
  EXPECT_EQ(search.run(), "more granted than the quota");
}

TEST(LedgerModel, finds_the_unguarded_reaper) {
  Search search({Variant::kReapUnguarded, 2, 3, 2, 1, 1, 2, {2, 2, 0}});
  EXPECT_NE(search.run(), "");
}

}  // namespace
