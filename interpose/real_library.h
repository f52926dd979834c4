// SPDX-License-Identifier: Apache-2.0
//
// The library that the process would have got without us: found as the loader would, never one of ours.
#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/loader.h"

namespace hook {

constexpr int kPathBytes = 4096;

// Opened at most once, never closed. Thread-safe; no lock is held while the loader runs.
class RealLibrary {
 public:
  constexpr explicit RealLibrary(const char* soname) {
    for (int i = 0; soname[i] != 0; i++) soname_[i] = soname[i];
  }
  RealLibrary(const RealLibrary&) = delete;
  RealLibrary& operator=(const RealLibrary&) = delete;

  const char* soname() const { return soname_; }

  // Its link map (which in glibc is its handle too), or nullptr while it is not open.
  const link_map* map() const { return map_.load(std::memory_order_acquire); }
  void* handle() const { return const_cast<link_map*>(map()); }

  // Where it is: the first of `hint` (the name or path a caller asked for; may be nullptr), the search path
  // of the object that contains `caller` (nullptr: the program's), the loader's cache, the system's
  // directories. false: nowhere.
  bool find(const char* hint, const void* caller, char (&path)[kPathBytes]) const;

  // Opens the file at `path` as this library, lazily and globally. If it can't be, nullptr; dlerror()
  // says why. Only the first one that is opened counts.
  const link_map* open(const char* path);

  // Takes one that somebody has loaded already. nullptr: nobody has.
  const link_map* adopt();

 private:
  const link_map* keep(const link_map* map);

  char soname_[24] = {};  // a copy: a pointer would need a relocation
  std::atomic<const link_map*> map_{nullptr};
};

}  // namespace hook
