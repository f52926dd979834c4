// SPDX-License-Identifier: Apache-2.0
#include "broker/sizes.h"

#include <array>
#include <cstdio>

#include "shm/layout.h"

namespace broker {
namespace {

struct Unit {
  std::string_view name;
  uint64_t bytes;
};

constexpr uint64_t kKi = 1024, kK = 1000;
constexpr std::array<Unit, 20> kUnits = {{
    {"", 1},
    {"B", 1},
    {"Ki", kKi},
    {"KiB", kKi},
    {"Mi", kKi* kKi},
    {"MiB", kKi* kKi},
    {"Gi", kKi* kKi* kKi},
    {"GiB", kKi* kKi* kKi},
    {"Ti", kKi* kKi* kKi* kKi},
    {"TiB", kKi* kKi* kKi* kKi},
    {"k", kK},
    {"K", kK},
    {"kB", kK},
    {"KB", kK},
    {"M", kK* kK},
    {"MB", kK* kK},
    {"G", kK* kK* kK},
    {"GB", kK* kK* kK},
    {"T", kK* kK* kK* kK},
    {"TB", kK* kK* kK* kK},
}};

constexpr char kAllowed[] =
    "allowed: a number with Ki, Mi, Gi, Ti (1024), k, M, G, T (1000), each also with B, as in 10GiB, 1.5Gi, "
    "10GB; plain bytes; or a percentage of the GPU, as in 25%";

// A decimal number without sign or exponent: whole + fraction / scale. More digits than fit are refused.
struct Decimal {
  uint64_t whole = 0;
  uint64_t fraction = 0;
  uint64_t scale = 1;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the number off the front of *text.
bool take_decimal(std::string_view* text, Decimal* number) {
  size_t at = 0;
  for (; at < text->size() && is_digit((*text)[at]); ++at) {
    if (number->whole > shm::kLedgerBytesMask) return false;
    number->whole = number->whole * 10 + static_cast<uint64_t>((*text)[at] - '0');
  }
  if (at == 0) return false;
  if (at < text->size() && (*text)[at] == '.') {
    const size_t point = at++;
    for (; at < text->size() && is_digit((*text)[at]); ++at) {
      if (at - point > 9) return false;
      number->fraction = number->fraction * 10 + static_cast<uint64_t>((*text)[at] - '0');
      number->scale *= 10;
    }
    if (at == point + 1) return false;
  }
  text->remove_prefix(at);
  return true;
}

Status refuse(const char* what, std::string_view text, const char* allowed) {
  return fail(Failure::kInvalid, std::string(what) + " '" + std::string(text) + "': " + allowed);
}

}  // namespace

Status parse_memory(std::string_view text, MemoryAmount* amount) {
  std::string_view rest = text;
  Decimal number;
  if (!take_decimal(&rest, &number)) return refuse("bad amount of memory", text, kAllowed);

  if (rest == "%") {
    const double percent = static_cast<double>(number.whole) +
                           static_cast<double>(number.fraction) / static_cast<double>(number.scale);
    if (percent <= 0 || percent > 100) {
      return refuse("bad amount of memory", text, "a percentage is above 0 and at most 100");
    }
    *amount = {.bytes = 0, .percent = percent};
    return {};
  }

  for (const Unit& unit : kUnits) {
    if (rest != unit.name) continue;
    using Wide = unsigned __int128;
    const Wide bytes = Wide{number.whole} * unit.bytes + Wide{number.fraction} * unit.bytes / number.scale;
    if (bytes > shm::kLedgerBytesMask) return refuse("bad amount of memory", text, "more than 255 TiB");
    if (bytes == 0) return refuse("bad amount of memory", text, "it must be above 0");
    *amount = {.bytes = static_cast<uint64_t>(bytes), .percent = 0};
    return {};
  }
  return refuse("bad amount of memory", text, kAllowed);
}

Status parse_share(std::string_view text, uint32_t* percent) {
  std::string_view rest = text;
  Decimal number;
  const bool ok = take_decimal(&rest, &number) && (rest.empty() || rest == "%") && number.scale == 1 &&
                  number.whole >= 1 && number.whole <= 100;
  if (!ok) return refuse("bad share", text, "allowed: whole percent from 1 to 100, as in 25 or 25%");
  *percent = static_cast<uint32_t>(number.whole);
  return {};
}

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  uint64_t divisor = 1;
  while (unit + 1 < kNames.size() && bytes / divisor >= 1024) {
    divisor *= 1024;
    ++unit;
  }
  char text[32];
  // Rounded down: a quota or what is free of it is never shown larger than it is.
  const uint64_t tenths = static_cast<uint64_t>(static_cast<unsigned __int128>(bytes) * 10 / divisor);
  if (tenths % 10 == 0) {
    snprintf(text, sizeof text, "%llu %s", static_cast<unsigned long long>(tenths / 10), kNames[unit]);
  } else {
    snprintf(text, sizeof text, "%llu.%llu %s", static_cast<unsigned long long>(tenths / 10),
             static_cast<unsigned long long>(tenths % 10), kNames[unit]);
  }
  return text;
}

}  // namespace broker
