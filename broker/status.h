// SPDX-License-Identifier: Apache-2.0
//
// How an operation of the broker ended. The text is for the user: what, where, what to do.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace broker {

enum class Failure : uint8_t {
  kNone,
  kInvalid,  // can never be right
  kNotFound,
  kExists,    // the name is taken
  kFull,      // does not fit now
  kSystem,    // the system or the driver refused
  kNoBroker,  // nobody answers (seen by clients only)
};

struct [[nodiscard]] Status {
  Failure failure = Failure::kNone;
  std::string text;

  bool ok() const { return failure == Failure::kNone; }
};

inline Status fail(Failure failure, std::string text) { return {failure, std::move(text)}; }

}  // namespace broker
