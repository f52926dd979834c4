// SPDX-License-Identifier: Apache-2.0
//
// NVML's lists of a GPU's processes, and what is left of them for a slice.
#pragma once

#include <sys/mman.h>

#include <algorithm>

#include "interpose/nvml_slices.h"

namespace hook {

// Room for the whole GPU's list, of which the caller's array has room for the slice's part only, and for that
// part.
template <typename Info>
class Listing {
 public:
  explicit Listing(unsigned capacity)
      : capacity_(capacity),
        all_(static_cast<Info*>(
            mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Listing() {
    if (*this) munmap(all_, bytes());
  }
  Listing(const Listing&) = delete;
  Listing& operator=(const Listing&) = delete;
  explicit operator bool() const { return all_ != MAP_FAILED; }
  unsigned capacity() const { return capacity_; }
  Info* all() const { return all_; }
  Info* own() const { return all_ + capacity_; }

 private:
  size_t bytes() const { return size_t{2} * capacity_ * sizeof(Info); }

  const unsigned capacity_;
  Info* const all_;
};

// Accounting lists bare pids.
inline uint32_t& pid_of(uint32_t& pid) { return pid; }
template <typename Info>
uint32_t& pid_of(Info& info) {
  return info.pid;
}

// Copies the slice's processes of the first `count`, under the pids that they have here and as
// `show(entry, resident)` shows them. How many they are.
template <typename Info, typename Show>
unsigned pick_own(const Residents& residents, const Listing<Info>& list, unsigned count, Show show) {
  const auto lists = [&](uint32_t pid) {
    return std::any_of(list.all(), list.all() + count, [=](Info& entry) { return pid_of(entry) == pid; });
  };
  unsigned own = 0;
  for (unsigned i = 0; i < count; i++) {
    Info entry = list.all()[i];
    Residents::Resident resident;
    if (!residents.find(pid_of(entry), lists, &resident)) continue;
    pid_of(entry) = resident.pid;
    show(entry, resident);
    list.own()[own++] = entry;
  }
  return own;
}

// Asks NVML for its whole list with `ask(count, entries)`, which tells in NVML's way how long it is if there
// is no room for it, and ends with `deliver(own, count)` of what is the slice's.
template <typename Info, typename Ask, typename Show, typename Deliver>
nvmlReturn_t list_own(const Residents& residents, Ask ask, Show show, Deliver deliver) {
  constexpr unsigned kRoom = 64;
  constexpr int kAttempts = 4;  // it may grow between two of them
  unsigned capacity = kRoom;
  for (int attempt = 0; attempt < kAttempts; attempt++) {
    const Listing<Info> list(capacity);
    if (!list) return NVML_ERROR_MEMORY;
    unsigned there = capacity;
    const nvmlReturn_t result = ask(&there, list.all());
    if (result == NVML_ERROR_INSUFFICIENT_SIZE) {
      capacity = std::max(there, capacity) + kRoom;
      continue;
    }
    if (result != NVML_SUCCESS) return result;
    return deliver(list.own(), pick_own(residents, list, std::min(there, capacity), show));
  }
  return NVML_ERROR_INSUFFICIENT_SIZE;
}

// The usual way of handing a list out: *count says what there is room for, and then how many there are.
template <typename Info>
nvmlReturn_t hand_out(const Info* own, unsigned own_count, unsigned* count, Info* infos) {
  const unsigned room = infos != nullptr ? *count : 0;
  *count = own_count;
  if (own_count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::copy_n(own, own_count, infos);
  return NVML_SUCCESS;
}

}  // namespace hook
