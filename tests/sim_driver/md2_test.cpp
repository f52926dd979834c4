// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/md2.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace {

std::string md2_text(const std::string& message) {
  uint8_t digest[16];
  sim::md2(message.data(), message.size(), digest);
  std::string text;
  for (const uint8_t byte : digest) {
    char hex[3];
    snprintf(hex, sizeof hex, "%02x", byte);
    text += hex;
  }
  return text;
}

}  // namespace

TEST(Md2, gives_what_rfc_1319_says) {
  EXPECT_EQ(md2_text(""), "8350e5a3e24c153df2275c9f80692773");
  EXPECT_EQ(md2_text("a"), "32ec01ec4a6dac72c0ab96fb34c0b5d1");
  EXPECT_EQ(md2_text("abc"), "da853b0d3f88d99b30283a69e6ded6bb");
  EXPECT_EQ(md2_text("message digest"), "ab4f496bfb2a530b219ff33031fe06b0");
}
