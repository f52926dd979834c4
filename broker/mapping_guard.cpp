// SPDX-License-Identifier: Apache-2.0
#include "broker/mapping_guard.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <mutex>

namespace broker {
namespace {

// The handler reads these without a lock; an entry is in use while its length is not 0.
struct Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<size_t> length_bytes{0};
  std::atomic<bool> damaged{false};
};

constexpr int kMaxRanges = 4096;
std::array<Range, kMaxRanges> ranges;

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Range& range : ranges) {
    const size_t length = range.length_bytes.load(std::memory_order_acquire);
    const uintptr_t begin = range.begin.load(std::memory_order_relaxed);
    if (length == 0 || address < begin || address - begin >= length) continue;
    void* const zeros = mmap(reinterpret_cast<void*>(begin), length, PROT_READ | PROT_WRITE,
                             MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (zeros == MAP_FAILED) break;
    range.damaged.store(true, std::memory_order_release);
    return;
  }
  // Not ours: the access is repeated on return, and ends the process.
  std::signal(signal, SIG_DFL);
}

void install_handler() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

MappingGuard::MappingGuard(void* begin, size_t length_bytes) : entry_(-1) {
  static std::once_flag installed;
  static std::mutex entries_mutex;
  std::call_once(installed, install_handler);

  const std::lock_guard lock(entries_mutex);
  for (int entry = 0; entry < kMaxRanges; ++entry) {
    Range& range = ranges[entry];
    if (range.length_bytes.load(std::memory_order_relaxed) != 0) continue;
    range.damaged.store(false, std::memory_order_relaxed);
    range.begin.store(reinterpret_cast<uintptr_t>(begin), std::memory_order_relaxed);
    range.length_bytes.store(length_bytes, std::memory_order_release);
    entry_ = entry;
    return;
  }
  // Slices are far fewer: their compute adds up to 100 per GPU.
  std::abort();
}

MappingGuard::~MappingGuard() { ranges[entry_].length_bytes.store(0, std::memory_order_release); }

bool MappingGuard::damaged() const { return ranges[entry_].damaged.load(std::memory_order_acquire); }

}  // namespace broker
