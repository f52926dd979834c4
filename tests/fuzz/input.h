// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

// What a fuzzer promises of the code under test, beyond that no sanitizer complains.
#define HOLDS(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      fprintf(stderr, "%s:%d: not: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                             \
    }                                                                      \
  } while (0)

namespace fuzz {

// Numbers and texts off the front of arbitrary bytes; zeros when they are used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  template <typename T>
  T take() {
    T value = {};
    const size_t bytes = size_ < sizeof value ? size_ : sizeof value;
    if (bytes != 0) memcpy(&value, data_, bytes);
    data_ += bytes;
    size_ -= bytes;
    return value;
  }
  std::string text() {
    const size_t wanted = take<uint8_t>() % 32;
    const size_t bytes = size_ < wanted ? size_ : wanted;
    std::string result(reinterpret_cast<const char*>(data_), bytes);
    data_ += bytes;
    size_ -= bytes;
    return result;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace fuzz
