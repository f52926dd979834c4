// SPDX-License-Identifier: Apache-2.0
//
// Attaching to a node, and who has what of it: processes, memory, contexts.
#include "sim/node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "sim/locked_device.h"
#include "sim/node_file.h"

namespace sim {
namespace {

// *path becomes that of the node's file.
NodeFile* attach(std::string* directory, std::string* path, std::string* error) {
  NodeSettings settings;
  if (const char* given = getenv("SIMGPU_NODE")) {
    std::error_code ignored;
    *directory = std::filesystem::absolute(given, ignored);  // the program may go elsewhere
    *path = *directory + "/node";
    // What the node's file says holds, whatever this environment does.
    NodeFile* file = open_node(*directory, error);
    if (file || !error->empty()) return file;
  }
  if (!settings_from_environment(&settings, error)) return nullptr;
  return directory->empty() ? create_private_node(settings, path, error)
                            : open_or_create_node(*directory, settings, error);
}

}  // namespace

Node& Node::get() {
  static Node* const node = [] {
    std::string directory, path, error;
    NodeFile* file = attach(&directory, &path, &error);
    if (!file) fprintf(stderr, "simgpu: no simulated GPU: %s\n", error.c_str());
    return new Node(file, Lives(path, directory, file ? file->host_namespace : 0));
  }();
  return *node;
}

Node::Node(NodeFile* file, Lives lives)
    : file_(file),
      lives_(std::move(lives)),
      model_(file ? find_gpu_model(file->settings.gpu) : &gpu_model(0)) {}

const NodeSettings& Node::settings() const {
  static constexpr NodeSettings kNone = {.device_count = 0};
  return file_ ? file_->settings : kNone;
}

const GpuModel& Node::model(int) const { return *model_; }

void Node::uuid(int device, uint8_t out[16]) const {
  uint64_t seed = file_->identity + device;
  for (size_t half = 0; half < 2; ++half) {
    seed += 0x9e3779b97f4a7c15;  // splitmix64
    uint64_t value = seed;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    value ^= value >> 31;
    memcpy(out + half * 8, &value, 8);
  }
  out[6] = (out[6] & 0x0f) | 0x40;
  out[8] = (out[8] & 0x3f) | 0x80;
}

void Node::pci(int device, uint32_t* domain, uint32_t* bus, uint32_t* dev) const {
  *domain = 0;
  *bus = 0x10 + device * 8;
  *dev = 0;
}

// --- Processes.

bool Node::is_ours(const Context& context) const {
  const uint32_t device = context.device_plus_one.load(std::memory_order_relaxed);
  if (!device || !context.owner_plus_one) return false;
  const Process& owner = file_->devices[device - 1].processes[context.owner_plus_one - 1];
  return owner.life == lives_.self().life && owner.pid != 0;
}

// This process' entry of the device; -1: it has none, and none could be or was to be made.
int Node::own_process(LockedDevice& locked, bool make) {
  Device& device = locked.device;
  const ProcessIdentity& self = lives_.self();
  int free_entry = -1;
  for (uint64_t i = 0; i < device.process_end; ++i) {
    const Process& process = device.processes[i];
    if (process.pid != 0 && process.life == self.life) return i;
    if (process.pid == 0 && free_entry < 0) free_entry = i;
  }
  if (!make || self.life == 0) return -1;
  if (free_entry < 0) {
    if (device.process_end == kMaxProcesses) return -1;
    free_entry = device.process_end;
    locked.journal.add(device.process_end, 1);
  }
  Process& process = device.processes[free_entry];
  locked.journal.set(process.memory_bytes, 0);
  locked.journal.set(process.managed_bytes, 0);
  locked.journal.set(process.contexts, 0);
  locked.journal.set(process.busy_ns, 0);
  process.history = {};
  locked.journal.set(process.xid, 0);
  locked.journal.set(process.life, self.life);
  locked.journal.set(process.pid, self.pid);
  return free_entry;
}

// Removes the processes that are no more, and what they had.
void Node::sweep(LockedDevice& locked) {
  const Lives::Look look(lives_);
  for (uint64_t i = 0; i < locked.device.process_end; ++i) {
    const Process& process = locked.device.processes[i];
    if (process.pid != 0 && !look.is_alive(process.life)) remove_process(locked, i);
  }
}

void Node::remove_process(LockedDevice& locked, int index) {
  Process& process = locked.device.processes[index];
  const int end = file_->context_end.load(std::memory_order_relaxed);
  for (int i = 0; process.contexts > 0 && i < end; ++i) {
    const Context& context = file_->contexts[i];
    const bool here = context.device_plus_one.load(std::memory_order_relaxed) == locked.index + 1u;
    if (here && context.owner_plus_one == index + 1u) remove_context(locked, i);
  }
  end_sharing(locked, index);
  locked.journal.add(locked.device.used_bytes, -process.memory_bytes);
  locked.journal.set(process.memory_bytes, 0);
  locked.journal.set(process.managed_bytes, 0);
  locked.journal.set(process.pid, 0);
  locked.engine.commit();
  locked.wake_sleepers();
}

// After the death of who held the lock. Entries of contexts that were being made or given back are nobody's.
void Node::recover(LockedDevice& locked) {
  locked.engine.recover();
  const int end = file_->context_end.load(std::memory_order_relaxed);
  for (int i = 0; i < end; ++i) {
    Context& context = file_->contexts[i];
    const bool here = context.device_plus_one.load(std::memory_order_relaxed) == locked.index + 1u;
    if (here && !context.owner_plus_one) context.device_plus_one.store(0, std::memory_order_release);
  }
}

// --- Memory.

// Whether the device has so much left, the dead processes' memory included.
bool Node::has_memory(LockedDevice& locked, uint64_t bytes) {
  const auto fits = [&] { return bytes <= model_->memory_bytes - locked.device.used_bytes; };
  if (fits()) return true;
  sweep(locked);
  return fits();
}

bool Node::take_memory(int device, uint64_t bytes, Memory kind) {
  if (request_is_refused(device)) return false;
  LockedDevice locked(*this, device, Sweep::kIfDue);
  if (!has_memory(locked, bytes)) return false;
  const int index = own_process(locked, true);
  if (index < 0) return false;
  Process& process = locked.device.processes[index];
  if (kind == Memory::kManaged) locked.journal.add(process.managed_bytes, bytes);
  locked.journal.add(process.memory_bytes, bytes);
  locked.journal.add(locked.device.used_bytes, bytes);
  return true;
}

void Node::give_memory(int device, uint64_t bytes, Memory kind) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  const int index = own_process(locked, false);
  if (index < 0) return;
  Process& process = locked.device.processes[index];
  bytes = std::min(bytes, process.memory_bytes - process.contexts * file_->settings.context_bytes);
  if (kind == Memory::kManaged)
    locked.journal.add(process.managed_bytes, -std::min(bytes, process.managed_bytes));
  locked.journal.add(process.memory_bytes, -bytes);
  locked.journal.add(locked.device.used_bytes, -bytes);
}

MemoryInfo Node::memory(int device) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  return {model_->memory_bytes, model_->reserved_bytes, locked.device.used_bytes};
}

// --- Contexts.

ContextId Node::create_context(int device) {
  if (request_is_refused(device)) return kNoContext;
  LockedDevice locked(*this, device, Sweep::kIfDue);
  const uint64_t bytes = file_->settings.context_bytes;
  if (!has_memory(locked, bytes)) return kNoContext;
  const int process = own_process(locked, true);
  if (process < 0) return kNoContext;
  for (int index = 0; index < kMaxContexts; ++index) {
    Context& context = file_->contexts[index];
    uint32_t free_entry = 0;
    if (context.device_plus_one.load(std::memory_order_relaxed) != 0) continue;
    uint32_t end = file_->context_end.load(std::memory_order_relaxed);
    while (end <= static_cast<uint32_t>(index) && !file_->context_end.compare_exchange_weak(end, index + 1)) {
    }
    if (!context.device_plus_one.compare_exchange_strong(free_entry, device + 1)) continue;

    // Nobody looks at the rest before it has an owner.
    context.generation += 1;
    context.ready_next = context.in_ready_queue = 0;
    context.blocked = context.held = context.copying = context.runnable = context.running = 0;
    memset(context.channels, 0, sizeof(context.channels));
    locked.journal.set(context.owner_plus_one, process + 1);
    locked.journal.add(locked.device.processes[process].contexts, 1);
    locked.journal.add(locked.device.processes[process].memory_bytes, bytes);
    locked.journal.add(locked.device.used_bytes, bytes);
    forget_marker_times(index);
    return index;
  }
  return kNoContext;
}

void Node::destroy_context(ContextId id) {
  if (id < 0 || id >= kMaxContexts) return;
  const uint32_t device = file_->contexts[id].device_plus_one.load(std::memory_order_relaxed);
  if (!device) return;
  LockedDevice locked(*this, device - 1, Sweep::kIfOthersRun);
  if (!is_ours(file_->contexts[id])) return;
  remove_context(locked, id);
  locked.wake_sleepers();
}

void Node::remove_context(LockedDevice& locked, int index) {
  Context& context = file_->contexts[index];
  Process& owner = locked.device.processes[context.owner_plus_one - 1];
  locked.engine.drop_work(index);
  const uint64_t bytes = file_->settings.context_bytes;
  locked.journal.set(context.owner_plus_one, 0);
  locked.journal.add(owner.contexts, -1);
  locked.journal.add(owner.memory_bytes, -bytes);
  locked.journal.add(locked.device.used_bytes, -bytes);
  locked.engine.commit();
  // Gives back the host memory of the rings; that they then read as zeroes matters to nobody.
  madvise(file_->rings[index], sizeof(file_->rings[index]), MADV_REMOVE);
  context.device_plus_one.store(0, std::memory_order_release);
}

// --- What NVML shows.

void Node::remove_dead_processes(int device) { LockedDevice locked(*this, device, Sweep::kNow); }

int Node::processes(int device, ProcessUse* out, int capacity) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  locked.engine.settle_busy();
  int count = 0;
  for (uint64_t i = 0; i < locked.device.process_end; ++i) {
    const Process& process = locked.device.processes[i];
    if (process.pid == 0 || process.contexts == 0) continue;
    const uint64_t listed_bytes = process.memory_bytes - process.managed_bytes;
    if (count < capacity) out[count] = {static_cast<uint32_t>(process.pid), listed_bytes, process.busy_ns};
    ++count;
  }
  return count;
}

DeviceUse Node::device_use(int device) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  locked.engine.settle_busy();
  return {locked.device.busy_ns, locked.device.switch_ns, locked.device.switches};
}

uint32_t Node::utilization_percent(int device, uint64_t window_ns) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  locked.engine.settle_busy();
  return busy_percent(locked.device.history, locked.device.now_ns, window_ns);
}

uint32_t Node::process_utilization_percent(int device, uint32_t pid, uint64_t window_ns) {
  LockedDevice locked(*this, device, Sweep::kIfDue);
  locked.engine.settle_busy();
  for (uint64_t i = 0; i < locked.device.process_end; ++i) {
    const Process& process = locked.device.processes[i];
    if (process.pid == pid) return busy_percent(process.history, locked.device.now_ns, window_ns);
  }
  return 0;
}

}  // namespace sim
