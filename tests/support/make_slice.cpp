// SPDX-License-Identifier: Apache-2.0
//
// make_slice DIRECTORY MEMORY_MIB [GPU_INDEX...]
//
// Makes a slice directory as a broker would, with its gate open, and leaves: a slice without a broker, for
// tests. GPUs are those of the NVML that it finds (by default the first one); each gives MEMORY_MIB.
#include <dlfcn.h>
#include <nvml.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "shm/segment.h"

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kContextBytes = 500 * kMiB;  // what a context takes on the simulated GPU

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "make_slice: %s\n", what.c_str());
  exit(1);
}

template <typename Function>
Function* find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) fail(dlerror());
  return reinterpret_cast<Function*>(found);
}

shm::GpuTerms terms_of(void* nvml, unsigned index, uint64_t quota_bytes) {
  nvmlDevice_t device;
  if (find<decltype(nvmlDeviceGetHandleByIndex_v2)>(nvml, "nvmlDeviceGetHandleByIndex_v2")(index, &device) !=
      0) {
    fail("no GPU " + std::to_string(index));
  }
  char uuid[96];
  find<decltype(nvmlDeviceGetUUID)>(nvml, "nvmlDeviceGetUUID")(device, uuid, sizeof uuid);
  nvmlMemory_t memory;
  find<decltype(nvmlDeviceGetMemoryInfo)>(nvml, "nvmlDeviceGetMemoryInfo")(device, &memory);
  shm::GpuTerms terms = {{}, quota_bytes, memory.total, kContextBytes};
  int digits = 0;
  for (const char* at = uuid + strlen("GPU-"); *at != 0 && digits < 32; at++) {
    if (*at == '-') continue;
    const char digit[] = {*at, 0};
    terms.uuid[digits / 2] = static_cast<uint8_t>(terms.uuid[digits / 2] << 4 | strtoul(digit, nullptr, 16));
    digits++;
  }
  return terms;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) fail("usage: make_slice DIRECTORY MEMORY_MIB [GPU_INDEX...]");
  const uint64_t quota_bytes = strtoull(argv[2], nullptr, 10) * kMiB;
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (nvml == nullptr) fail(dlerror());
  if (find<decltype(nvmlInit_v2)>(nvml, "nvmlInit_v2")() != NVML_SUCCESS) fail("NVML does not start");
  std::vector<shm::GpuTerms> gpus;
  if (argc == 3) gpus.push_back(terms_of(nvml, 0, quota_bytes));
  for (int i = 3; i < argc; i++) {
    gpus.push_back(terms_of(nvml, static_cast<unsigned>(strtoul(argv[i], nullptr, 10)), quota_bytes));
  }
  if (mkdir(argv[1], 0755) != 0 && errno != EEXIST) fail(std::string(argv[1]) + ": " + strerror(errno));
  const char* slash = strrchr(argv[1], '/');
  const shm::SliceTerms terms = {
      slash != nullptr ? slash + 1 : argv[1], gpus.data(), static_cast<int>(gpus.size()), 100, 100, 0};
  shm::Limits* limits;
  shm::State* state;
  if (!shm::create(argv[1], terms, &limits, &state)) fail(std::string(argv[1]) + ": " + strerror(errno));
  limits->gate.mode = shm::kOpen;
  limits->gate.gate = shm::gate_word(shm::kGateOpen, 1);
  return 0;
}
