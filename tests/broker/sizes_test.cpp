// SPDX-License-Identifier: Apache-2.0
#include "broker/sizes.h"

#include <gtest/gtest.h>

namespace {

using broker::format_bytes;
using broker::MemoryAmount;
using broker::parse_memory;
using broker::parse_share;

uint64_t bytes(const char* text) {
  MemoryAmount amount;
  EXPECT_TRUE(parse_memory(text, &amount).ok()) << text;
  EXPECT_EQ(amount.percent, 0);
  return amount.bytes;
}

TEST(SizesTest, units_of_1024_and_of_1000) {
  EXPECT_EQ(bytes("10GiB"), 10ull << 30);
  EXPECT_EQ(bytes("10Gi"), 10ull << 30);
  EXPECT_EQ(bytes("10GB"), 10'000'000'000u);
  EXPECT_EQ(bytes("10G"), 10'000'000'000u);
  EXPECT_EQ(bytes("512MiB"), 512ull << 20);
  EXPECT_EQ(bytes("1k"), 1000u);
  EXPECT_EQ(bytes("1Ti"), 1ull << 40);
  EXPECT_EQ(bytes("1073741824"), 1ull << 30);
  EXPECT_EQ(bytes("7B"), 7u);
}

TEST(SizesTest, decimals_are_exact) {
  EXPECT_EQ(bytes("1.5GiB"), 3ull << 29);
  EXPECT_EQ(bytes("0.1GB"), 100'000'000u);
  EXPECT_EQ(bytes("0.000000001GB"), 1u);
}

TEST(SizesTest, percentages) {
  MemoryAmount amount;
  ASSERT_TRUE(parse_memory("25%", &amount).ok());
  EXPECT_EQ(amount.bytes, 0u);
  EXPECT_EQ(amount.percent, 25);
  ASSERT_TRUE(parse_memory("12.5%", &amount).ok());
  EXPECT_EQ(amount.percent, 12.5);
  ASSERT_TRUE(parse_memory("100%", &amount).ok());
}

TEST(SizesTest, bad_amounts_are_refused_with_what_is_allowed) {
  for (const char* text : {"",
                           " ",
                           "GiB",
                           "-1GiB",
                           "+1GiB",
                           "1e3",
                           "1 GiB",
                           " 1GiB",
                           "1GiB ",
                           "1,5GiB",
                           "1.GiB",
                           ".5GiB",
                           "1.5.5GiB",
                           "0x10",
                           "10gib",
                           "10GIB",
                           "10PiB",
                           "0",
                           "0GiB",
                           "0%",
                           "101%",
                           "-5%",
                           "5%%",
                           "99999999999999999999",
                           "99999999999999999999%",
                           "300TiB",
                           "281474976710656",
                           "1.0000000001GiB",
                           "nan",
                           "inf",
                           "0.0001B"}) {
    MemoryAmount amount = {.bytes = 42, .percent = 0};
    const broker::Status status = parse_memory(text, &amount);
    EXPECT_EQ(status.failure, broker::Failure::kInvalid) << text;
    EXPECT_NE(status.text.find(std::string("'") + text + "'"), std::string::npos) << status.text;
    EXPECT_EQ(amount.bytes, 42u) << text;
  }
  MemoryAmount amount;
  EXPECT_NE(parse_memory("10 GB", &amount).text.find("10GiB"), std::string::npos);
}

TEST(SizesTest, the_largest_amount_fits_the_ledger) { EXPECT_EQ(bytes("281474976710655"), (1ull << 48) - 1); }

TEST(SizesTest, shares_are_whole_percent) {
  uint32_t percent = 0;
  EXPECT_TRUE(parse_share("25", &percent).ok());
  EXPECT_EQ(percent, 25u);
  EXPECT_TRUE(parse_share("100%", &percent).ok());
  EXPECT_EQ(percent, 100u);
  for (const char* text : {"", "0", "101", "-1", "2.5", "25 %", "1e1", "x", "25GiB", "4294967297"}) {
    EXPECT_EQ(parse_share(text, &percent).failure, broker::Failure::kInvalid) << text;
  }
}

TEST(SizesTest, formats_round_down) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(10ull << 30), "10 GiB");
  EXPECT_EQ(format_bytes((10ull << 30) - 1), "9.9 GiB");
  EXPECT_EQ(format_bytes(3ull << 29), "1.5 GiB");
  EXPECT_EQ(format_bytes(~0ull), "16777215.9 TiB");
}

}  // namespace
