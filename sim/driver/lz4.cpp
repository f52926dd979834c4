// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/lz4.h"

namespace sim {
namespace {

// A length is 4 bits of the token; 15 means that bytes follow, up to the first that is not 255.
bool read_length(const unsigned char** at, const unsigned char* end, size_t* length) {
  if (*length != 15) return true;
  while (*at < end) {
    const unsigned char more = *(*at)++;
    *length += more;
    if (more != 255) return true;
  }
  return false;
}

}  // namespace

bool unpack_lz4(const unsigned char* packed, size_t packed_bytes, size_t unpacked_bytes,
                std::string* unpacked) {
  constexpr size_t kShortestMatch = 4;
  const unsigned char* at = packed;
  const unsigned char* end = packed + packed_bytes;
  unpacked->clear();
  unpacked->reserve(unpacked_bytes);
  while (at < end) {
    const unsigned char token = *at++;
    size_t literals = token >> 4;
    if (!read_length(&at, end, &literals) || literals > static_cast<size_t>(end - at)) return false;
    unpacked->append(reinterpret_cast<const char*>(at), literals);
    at += literals;
    // The last sequence is literals only. What follows it is padding.
    if (at >= end || unpacked->size() >= unpacked_bytes) break;
    if (end - at < 2) return false;
    const size_t distance = static_cast<size_t>(at[0]) | static_cast<size_t>(at[1]) << 8;
    at += 2;
    size_t match = token & 15;
    if (!read_length(&at, end, &match)) return false;
    match += kShortestMatch;
    if (distance == 0 || distance > unpacked->size() || unpacked->size() + match > unpacked_bytes)
      return false;
    // Byte by byte: a match may overlap what it produces.
    for (size_t i = 0; i < match; ++i) unpacked->push_back((*unpacked)[unpacked->size() - distance]);
  }
  return unpacked->size() == unpacked_bytes;
}

}  // namespace sim
