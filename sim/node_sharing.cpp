// SPDX-License-Identifier: Apache-2.0
//
// Memory that other processes hold too: it is the exporter's until that gives it back or ends, and then
// nobody's for as long as an importer still has it.
#include <sys/random.h>

#include "sim/locked_device.h"
#include "sim/node.h"

namespace sim {
namespace {

uint64_t random_key() {
  uint64_t key = 0;
  while (key == 0) {
    if (getrandom(&key, sizeof(key), 0) != sizeof(key)) key = 0;
  }
  return key;
}

SharedMemory* find(Device& device, uint64_t key) {
  for (uint64_t i = 0; key != 0 && i < device.shared_end; ++i) {
    if (device.shared[i].key == key) return &device.shared[i];
  }
  return nullptr;
}

// An entry that is free, from a table whose used part ends at *end. nullptr: full.
template <typename Entry, size_t kCount, typename IsFree>
Entry* find_free(Journal& journal, Entry (&table)[kCount], uint64_t& end, IsFree is_free) {
  for (uint64_t i = 0; i < end; ++i) {
    if (is_free(table[i])) return &table[i];
  }
  if (end == kCount) return nullptr;
  journal.add(end, 1);
  return &table[end - 1];
}

}  // namespace

uint64_t Node::share_memory(int device, uint64_t bytes) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  const int owner = own_process(locked, false);
  if (owner < 0) return 0;
  SharedMemory* entry = find_free(locked.journal, locked.device.shared, locked.device.shared_end,
                                  [](const SharedMemory& shared) { return shared.key == 0; });
  if (!entry) return 0;
  const uint64_t key = random_key();
  locked.journal.set(entry->bytes, bytes);
  locked.journal.set(entry->holds, 0);
  locked.journal.set(entry->owner_plus_one, owner + 1);
  locked.journal.set(entry->key, key);
  return key;
}

void Node::give_shared_memory(int device, uint64_t key) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  SharedMemory* shared = find(locked.device, key);
  if (shared && shared->owner_plus_one == own_process(locked, false) + 1u) disown(locked, *shared);
}

bool Node::hold_shared_memory(int device, uint64_t key) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  SharedMemory* shared = find(locked.device, key);
  const int process = shared ? own_process(locked, true) : -1;
  if (process < 0) return false;
  SharedHold* hold = find_free(locked.journal, locked.device.shared_holds, locked.device.shared_holds_end,
                               [](const SharedHold& entry) { return entry.process_plus_one == 0; });
  if (!hold) return false;
  locked.journal.add(shared->holds, 1);
  locked.journal.set(hold->key, key);
  locked.journal.set(hold->process_plus_one, process + 1);
  return true;
}

void Node::let_shared_memory_go(int device, uint64_t key) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  const uint32_t process_plus_one = own_process(locked, false) + 1;
  for (uint64_t i = 0; process_plus_one && i < locked.device.shared_holds_end; ++i) {
    SharedHold& hold = locked.device.shared_holds[i];
    if (hold.key == key && hold.process_plus_one == process_plus_one) {
      drop_hold(locked, hold);
      return;
    }
  }
}

void Node::drop_hold(LockedDevice& locked, SharedHold& hold) {
  locked.journal.set(hold.process_plus_one, 0);
  SharedMemory* shared = find(locked.device, hold.key);
  if (!shared) return;
  locked.journal.add(shared->holds, -1);
  if (shared->holds != 0 || shared->owner_plus_one) return;
  locked.journal.add(locked.device.used_bytes, -shared->bytes);
  locked.journal.set(shared->key, 0);
}

// The memory is no longer its owner's.
void Node::disown(LockedDevice& locked, SharedMemory& shared) {
  Process& owner = locked.device.processes[shared.owner_plus_one - 1];
  locked.journal.add(owner.memory_bytes, -shared.bytes);
  locked.journal.set(shared.owner_plus_one, 0);
  if (shared.holds != 0) return;
  locked.journal.add(locked.device.used_bytes, -shared.bytes);
  locked.journal.set(shared.key, 0);
}

// What a process that ends has to do with shared memory.
void Node::end_sharing(LockedDevice& locked, int index) {
  const uint32_t process_plus_one = index + 1;
  for (uint64_t i = 0; i < locked.device.shared_holds_end; ++i) {
    if (locked.journal.nearly_full()) locked.engine.commit();
    SharedHold& hold = locked.device.shared_holds[i];
    if (hold.process_plus_one == process_plus_one) drop_hold(locked, hold);
  }
  for (uint64_t i = 0; i < locked.device.shared_end; ++i) {
    if (locked.journal.nearly_full()) locked.engine.commit();
    SharedMemory& shared = locked.device.shared[i];
    if (shared.key != 0 && shared.owner_plus_one == process_plus_one) disown(locked, shared);
  }
}

}  // namespace sim
