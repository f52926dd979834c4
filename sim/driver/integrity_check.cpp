// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/integrity_check.h"

#include <pthread.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "sim/driver/device.h"
#include "sim/driver/md2.h"

namespace sim {
namespace {

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

void answer_integrity_check(uint32_t version, uint64_t seconds, const void* runtime_table,
                            const void* check_table, const void* check_function, uint8_t answer[16]) {
  constexpr uint64_t kFixed = 0x8ED383AA1F4CD1E8;
  if (version % 10 == 0) return store(answer, 0x3341181C03CB675C, kFixed);
  if (version % 10 == 1) return store(answer, 0x1841181C03CB675C, kFixed);
  const Node& node = Node::get();
  std::vector<uint8_t> message;
  append(message, Question{node.settings().driver_version, version, static_cast<uint32_t>(getpid()),
                           static_cast<uint32_t>(pthread_self()), reinterpret_cast<uint64_t>(runtime_table),
                           reinterpret_cast<uint64_t>(check_table),
                           reinterpret_cast<uint64_t>(check_function), seconds});
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
