// SPDX-License-Identifier: Apache-2.0
#include "interpose/session.h"

#include <string.h>
#include <sys/mman.h>

#include "interpose/attach.h"
#include "interpose/driver.h"
#include "interpose/gate.h"
#include "interpose/quota.h"
#include "interpose/syscalls.h"

namespace hook {
namespace {

using MembershipWord = std::atomic<uint32_t>;

constexpr uint64_t kAttachDeadlineNs = 5'000'000'000;
constexpr long kPageBytes = 4096;
constexpr int kWipeOnFork = 18;  // MADV_WIPEONFORK, which old headers lack

constinit Session the_session = {};

// The word lies in a page that a fork wipes: in the child it reads kUnknown, which is 0. nullptr until it is
// made.
static_assert(static_cast<int>(Membership::kUnknown) == 0);
constinit std::atomic<MembershipWord*> word_location{nullptr};

// Kernels before 4.14 can't wipe a page: there a child is known by its pid. 0: the page is wiped.
constinit std::atomic<uint32_t> pid_of_word{0};

// Set by the first attach in this image, and not wiped: set while the word is kUnknown, we are a forked
// child.
constinit std::atomic<bool> someone_attached_before{false};

uint32_t own_pid() { return static_cast<uint32_t>(system_call(SYS_getpid)); }

MembershipWord* make_word() {
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  const bool wiped = system_call(SYS_madvise, as_long(page), kPageBytes, kWipeOnFork) == 0;
  MembershipWord* expected = nullptr;
  auto* word = static_cast<MembershipWord*>(page);
  if (!wiped) pid_of_word.store(own_pid(), std::memory_order_relaxed);
  if (word_location.compare_exchange_strong(expected, word, std::memory_order_acq_rel)) return word;
  munmap(page, kPageBytes);
  return expected;
}

// The word of this process, made if need be; nullptr: no memory for it.
MembershipWord* own_word() {
  MembershipWord* word = word_location.load(std::memory_order_acquire);
  if (word == nullptr) word = make_word();
  const uint32_t pid = pid_of_word.load(std::memory_order_relaxed);
  if (word != nullptr && pid != 0 && pid != own_pid()) {
    pid_of_word.store(own_pid(), std::memory_order_relaxed);
    word->store(static_cast<uint32_t>(Membership::kUnknown), std::memory_order_relaxed);
  }
  return word;
}

bool is_attached() {
  const MembershipWord* word = word_location.load(std::memory_order_acquire);
  return word != nullptr &&
         word->load(std::memory_order_acquire) == static_cast<uint32_t>(Membership::kAttached);
}

uint64_t hash_of(const char* name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (; *name != 0; name++) hash = (hash ^ static_cast<uint8_t>(*name)) * 0x100000001b3;
  return hash != 0 ? hash : 1;
}

// What was looked up so far: most of it before the process attaches, since a runtime collects its functions
// first. Only grows; when it is full, later names are counted and no more.
constinit shm::UnknownFunction unknown_functions[shm::kMaxUnknownFunctions] = {};
constinit std::atomic<uint32_t> unknown_function_count{0};
constinit std::atomic<uint64_t> unreported_lookups{0};

void remember_unknown(const char* name) {
  const uint64_t hash = hash_of(name);
  for (const shm::UnknownFunction& known : unknown_functions) {
    if (known.hash.load(std::memory_order_relaxed) == hash) return;
  }
  if (unknown_function_count.load(std::memory_order_relaxed) >= shm::kMaxUnknownFunctions) return;
  const uint32_t index = unknown_function_count.fetch_add(1, std::memory_order_relaxed);
  if (index >= shm::kMaxUnknownFunctions) return;
  shm::UnknownFunction& entry = unknown_functions[index];
  for (size_t i = 0; i < sizeof entry.name && name[i] != 0; i++) entry.name[i] = name[i];
  // release; pairs with the acquire in report_unknown(): the name is whole.
  entry.hash.store(hash, std::memory_order_release);
}

void note_in(shm::State& state, const shm::UnknownFunction& function, uint64_t hash) {
  for (uint64_t probe = 0; probe < shm::kMaxUnknownFunctions; probe++) {
    shm::UnknownFunction& entry = state.unknown[(hash + probe) % shm::kMaxUnknownFunctions];
    uint64_t there = 0;
    if (entry.hash.compare_exchange_strong(there, hash, std::memory_order_relaxed)) {
      memcpy(entry.name, function.name, sizeof entry.name);
      return;
    }
    if (there == hash) return;
  }
}

// To the slices. Preconditions: attached.
void report_unknown() {
  const uint64_t lookups = unreported_lookups.exchange(0, std::memory_order_relaxed);
  if (lookups == 0) return;
  for (int i = 0; i < the_session.slice_count; i++) {
    shm::State& state = *the_session.slices[i].state;
    state.counters[shm::kUnclassifiedLookups].fetch_add(lookups, std::memory_order_relaxed);
    for (const shm::UnknownFunction& function : unknown_functions) {
      const uint64_t hash = function.hash.load(std::memory_order_acquire);
      if (hash != 0) note_in(state, function, hash);
    }
  }
}

// What the parent had is the parent's. No other thread of the child is in here: they wait for the attach.
void forget_parent() {
  the_session = {};
  forget_devices();
  forget_memory();
  gate::forked_child();
}

Membership attach(MembershipWord* word) {
  if (someone_attached_before.exchange(true, std::memory_order_relaxed)) forget_parent();
  const Membership result = attach_slices(&the_session);
  gate::attach(result);
  // release; pairs with the acquire in membership(): whoever reads kAttached sees the session whole.
  word->store(static_cast<uint32_t>(result), std::memory_order_release);
  futex_wake(word, INT32_MAX, false);
  if (result == Membership::kAttached) report_unknown();
  return result;
}

Membership attach_or_wait(MembershipWord* word) {
  uint32_t seen = static_cast<uint32_t>(Membership::kUnknown);
  if (word->compare_exchange_strong(seen, static_cast<uint32_t>(Membership::kAttaching),
                                    std::memory_order_acquire)) {
    return attach(word);
  }
  const uint64_t deadline_ns = now_ns() + kAttachDeadlineNs;
  while (seen == static_cast<uint32_t>(Membership::kAttaching)) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) return Membership::kClosed;
    futex_wait(word, seen, deadline_ns - now, false);
    seen = word->load(std::memory_order_acquire);
  }
  return static_cast<Membership>(seen);
}

}  // namespace

Membership membership() {
  MembershipWord* word = word_location.load(std::memory_order_acquire);
  if (word == nullptr || pid_of_word.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    word = own_word();
    if (word == nullptr) return Membership::kClosed;
  }
  const auto known = static_cast<Membership>(word->load(std::memory_order_acquire));
  return known > Membership::kAttaching ? known : attach_or_wait(word);
}

const Session& session() { return the_session; }

void count(shm::Counter counter) {
  if (!is_attached()) return;
  for (int i = 0; i < the_session.slice_count; i++) {
    the_session.slices[i].state->counters[counter].fetch_add(1, std::memory_order_relaxed);
  }
}

void note_unknown_function(const char* name) {
  remember_unknown(name);
  unreported_lookups.fetch_add(1, std::memory_order_relaxed);
  if (is_attached()) report_unknown();
}

CUresult cuInit(unsigned int Flags) noexcept {
  // Without a driver there is nothing to limit: a program that merely looks for CUDA attaches to nothing.
  if (open_driver() && membership() == Membership::kClosed) return CUDA_ERROR_SYSTEM_NOT_READY;
  return real<fn::cuInit>(Flags);
}

}  // namespace hook
