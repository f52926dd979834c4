// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace broker {

// Survives a mapped file that its other user truncates.
//
// A tenant may cut its `state`, and the user of the broker any file; the next access to a page past the end
// is a SIGBUS, in whoever made it. While a guard lives, such a fault in its range replaces the whole range by
// zeros, once and for good, and marks it damaged; the access then succeeds. Everywhere else a SIGBUS ends the
// process as usual.
class MappingGuard {
 public:
  MappingGuard(void* begin, size_t length_bytes);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  bool damaged() const;

 private:
  int entry_;
};

}  // namespace broker
