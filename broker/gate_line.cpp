// SPDX-License-Identifier: Apache-2.0
#include "broker/gate_line.h"

#include "broker/futex.h"

namespace broker {
namespace {

// A launch on the slow path reads `mode` first and then the rest, so the rest is written before `mode`; it
// reads `grant` before `mode` and sleeps on the value it read, so `grant` is changed last.
void publish(shm::Gate& gate, shm::GateMode mode) {
  gate.mode.store(mode, std::memory_order_release);
  const uint64_t epoch = shm::gate_epoch(gate.gate.load(std::memory_order_relaxed)) + 1;
  const uint64_t flag = mode == shm::kOpen ? shm::kGateOpen : shm::kGateShut;
  gate.gate.store(shm::gate_word(flag, epoch), std::memory_order_release);
  gate.grant.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(gate.grant);
}

shm::GateMode gate_mode(limiter::Mode mode) {
  switch (mode) {
    case limiter::Mode::kOpen:
      return shm::kOpen;
    case limiter::Mode::kTurn:
      return shm::kTurn;
    case limiter::Mode::kParked:
      break;
  }
  return shm::kParked;
}

}  // namespace

void write_gate(shm::Gate& gate, const limiter::Command& command, uint64_t run_ahead_ns) {
  const shm::GateMode mode = gate_mode(command.mode);
  const uint64_t deadline_ns = mode == shm::kTurn ? command.deadline_ns : shm::kNoDeadline;
  // A later deadline is a new turn too: processes that were closing the old one launch again. An earlier one
  // is not: what they launched so far counts towards it.
  const bool new_turn =
      mode == shm::kTurn && (gate.mode.load(std::memory_order_relaxed) != shm::kTurn ||
                             deadline_ns > gate.deadline_ns.load(std::memory_order_relaxed));
  gate.run_ahead_ns.store(run_ahead_ns, std::memory_order_relaxed);
  uint32_t others = 0;
  if (command.others_wait) others |= shm::kOthersWait;
  if (command.others_run) others |= shm::kOthersRun;
  gate.others.store(others, std::memory_order_relaxed);
  gate.deadline_ns.store(deadline_ns, std::memory_order_relaxed);
  // release: who sees the new turn sees its deadline.
  if (new_turn) gate.turn.fetch_add(1, std::memory_order_release);
  publish(gate, mode);
}

void block_gate(shm::Gate& gate) {
  gate.deadline_ns.store(0, std::memory_order_relaxed);
  publish(gate, shm::kBlocked);
}

}  // namespace broker
