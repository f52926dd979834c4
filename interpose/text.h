// SPDX-License-Identifier: Apache-2.0
//
// One line for stderr, built and written without stdio, heap or locale.
#pragma once

#include <string.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>

#include "interpose/syscalls.h"

namespace hook {

// Cut off silently when full.
class Line {
 public:
  Line& operator<<(const char* text) {
    append(text, strlen(text));
    return *this;
  }
  Line& operator<<(uint64_t number) {
    char digits[20];
    size_t count = 0;
    do {
      digits[sizeof digits - ++count] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    append(digits + sizeof digits - count, count);
    return *this;
  }

  // "1.50 GiB", "320 MiB", "77 bytes". The greatest number stands for sizes that it can't hold too.
  Line& bytes(uint64_t count) {
    if (count == UINT64_MAX) return *this << "16 EiB or more";
    if (count >= uint64_t{1} << 60) return scaled(count, 60) << " EiB";
    if (count >= uint64_t{1} << 30) return scaled(count, 30) << " GiB";
    if (count >= uint64_t{1} << 20) return scaled(count, 20) << " MiB";
    return *this << count << " bytes";
  }

  // As it comes from others: what is not printable ASCII becomes '?'.
  Line& foreign(const char* text, size_t most) {
    for (size_t i = 0; i < most && text[i] != 0; i++) {
      const char shown = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
      append(&shown, 1);
    }
    return *this;
  }

  // "GPU-" and the digits in groups, as NVML prints it.
  Line& uuid(const uint8_t (&uuid)[16]) {
    static constexpr char kDigits[] = "0123456789abcdef";
    append("GPU", 3);
    for (int i = 0; i < 16; i++) {
      if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) append("-", 1);
      const char digits[] = {kDigits[uuid[i] >> 4], kDigits[uuid[i] & 15]};
      append(digits, sizeof digits);
    }
    return *this;
  }

  void write_to_stderr() {
    text_[used_] = '\n';
    system_call(SYS_write, 2, as_long(text_), static_cast<long>(used_ + 1));
  }

 private:
  Line& scaled(uint64_t count, int shift) {
    const uint64_t unit = uint64_t{1} << shift;
    *this << (count >> shift);
    // In millionths of the unit, or the product would not fit for EiB.
    const uint64_t fraction = (count & (unit - 1)) >> (shift - 20);
    if (const uint64_t hundredths = fraction * 100 >> 20; hundredths != 0) {
      *this << (hundredths < 10 ? ".0" : ".") << hundredths;
    }
    return *this;
  }
  void append(const char* text, size_t count) {
    if (count > kMost - used_) count = kMost - used_;
    memcpy(text_ + used_, text, count);
    used_ += count;
  }

  static constexpr size_t kMost = 1023;
  size_t used_ = 0;
  char text_[kMost + 1];
};

}  // namespace hook
