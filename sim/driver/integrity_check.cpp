// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/integrity_check.h"

#include <pthread.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "sim/driver/device.h"

namespace sim {
namespace {

constexpr size_t kBlock = 16;

// RFC 1319's permutation, made from the digits of pi.
constexpr uint8_t kPermutation[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,   243, 192, 199,
    115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212, 224, 22,  103, 66,  111, 24,
    138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160, 251, 245, 142, 187, 47,  238, 122, 169, 104,
    121, 145, 21,  178, 7,   63,  148, 194, 16,  137, 11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,
    53,  62,  204, 231, 191, 247, 151, 3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,
    170, 198, 79,  184, 56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,
    100, 113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246, 28,  70,
    97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249, 206, 186, 197, 234, 38,
    44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,  82,  106, 220, 55,  200, 108, 193,
    171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120, 136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254,
    59,  0,   29,  57,  242, 239, 183, 14,  102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,
    80,  180, 143, 237, 31,  26,  219, 153, 141, 51,  159, 17,  131, 20,
};

void md2(const std::vector<uint8_t>& message, uint8_t digest[16]) {
  std::vector<uint8_t> padded = message;
  const size_t padding = kBlock - padded.size() % kBlock;
  padded.insert(padded.end(), padding, static_cast<uint8_t>(padding));
  uint8_t checksum[kBlock] = {};
  uint8_t last = 0;
  for (size_t block = 0; block < padded.size(); block += kBlock) {
    for (size_t i = 0; i < kBlock; ++i) last = checksum[i] ^= kPermutation[padded[block + i] ^ last];
  }
  padded.insert(padded.end(), checksum, checksum + kBlock);
  uint8_t state[3 * kBlock] = {};
  for (size_t block = 0; block < padded.size(); block += kBlock) {
    for (size_t i = 0; i < kBlock; ++i) {
      state[kBlock + i] = padded[block + i];
      state[2 * kBlock + i] = state[i] ^ padded[block + i];
    }
    uint8_t carry = 0;
    for (uint8_t round = 0; round < 18; ++round) {
      for (uint8_t& byte : state) carry = byte ^= kPermutation[carry];
      carry = static_cast<uint8_t>(carry + round);
    }
  }
  memcpy(digest, state, kBlock);
}

#pragma pack(push, 1)
struct Question {
  uint32_t driver_version;
  uint32_t version;
  uint32_t pid;
  uint32_t thread;
  uint64_t runtime_table;
  uint64_t check_table;
  uint64_t check_function;
  uint64_t seconds;
};
struct DeviceIdentity {
  uint8_t uuid[16];
  int32_t domain, bus, slot;
};
#pragma pack(pop)
static_assert(sizeof(Question) == 48 && sizeof(DeviceIdentity) == 28);

template <typename Part>
void append(std::vector<uint8_t>& message, const Part& part) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&part);
  message.insert(message.end(), bytes, bytes + sizeof part);
}

void store(uint8_t answer[16], uint64_t first, uint64_t second) {
  memcpy(answer, &first, sizeof first);
  memcpy(answer + 8, &second, sizeof second);
}

}  // namespace

void hmac_md2(const uint8_t key[16], const void* message, size_t bytes, uint8_t digest[16]) {
  std::vector<uint8_t> inner, outer;
  for (size_t i = 0; i < kBlock; ++i) {
    inner.push_back(key[i] ^ 0x36);
    outer.push_back(key[i] ^ 0x5c);
  }
  const auto* text = static_cast<const uint8_t*>(message);
  inner.insert(inner.end(), text, text + bytes);
  md2(inner, digest);
  outer.insert(outer.end(), digest, digest + kBlock);
  md2(outer, digest);
}

void answer_integrity_check(uint32_t version, uint64_t seconds, const void* runtime_table, const void* check_table,
                            const void* check_function, uint8_t answer[16]) {
  constexpr uint64_t kFixed = 0x8ED383AA1F4CD1E8;
  if (version % 10 == 0) return store(answer, 0x3341181C03CB675C, kFixed);
  if (version % 10 == 1) return store(answer, 0x1841181C03CB675C, kFixed);
  const Node& node = Node::get();
  std::vector<uint8_t> message;
  append(message, Question{node.settings().driver_version, version, static_cast<uint32_t>(getpid()),
                           static_cast<uint32_t>(pthread_self()), reinterpret_cast<uint64_t>(runtime_table),
                           reinterpret_cast<uint64_t>(check_table), reinterpret_cast<uint64_t>(check_function),
                           seconds});
  for (CUdevice device = 0; device < visible_devices(); ++device) {
    uint32_t domain, bus, slot;
    DeviceIdentity identity;
    node.uuid(node_device(device), identity.uuid);
    node.pci(node_device(device), &domain, &bus, &slot);
    identity.domain = static_cast<int32_t>(domain);
    identity.bus = static_cast<int32_t>(bus);
    identity.slot = static_cast<int32_t>(slot);
    append(message, identity);
  }
  static constexpr uint8_t kKey[16] = {0x14, 0x6A, 0xDD, 0xAE, 0x53, 0xA9, 0xA7, 0x52,
                                       0xAA, 0x08, 0x41, 0x36, 0x0B, 0xF5, 0x5A, 0x9F};
  hmac_md2(kKey, message.data(), message.size(), answer);
}

}  // namespace sim
