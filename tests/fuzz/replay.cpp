// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzzer where there is no libFuzzer: on every file of a corpus, then on bytes made from these at
// random, for some seconds. It looks for no new ways through the code; scripts/fuzz.sh does.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

Bytes mutated(const std::vector<Bytes>& corpus, std::mt19937_64& random) {
  Bytes bytes = corpus.empty() || random() % 8 == 0 ? Bytes() : corpus[random() % corpus.size()];
  const size_t length = bytes.empty() || random() % 4 == 0 ? random() % 512 : bytes.size();
  while (bytes.size() < length) bytes.push_back(static_cast<uint8_t>(random()));
  bytes.resize(length);
  for (uint64_t changes = random() % 16; changes > 0 && !bytes.empty(); --changes) {
    uint8_t& byte = bytes[random() % bytes.size()];
    byte =
        random() % 2 == 0 ? static_cast<uint8_t>(random()) : static_cast<uint8_t>(byte ^ 1u << random() % 8);
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s SECONDS CORPUS [SEED]\n", argv[0]);
    return 2;
  }
  const uint64_t seed = argc > 3 ? strtoull(argv[3], nullptr, 10) : std::random_device()();
  printf("seed %llu\n", static_cast<unsigned long long>(seed));
  fflush(stdout);
  std::vector<Bytes> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(argv[2])) {
    std::ifstream file(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (corpus.empty()) {
    fprintf(stderr, "%s: no corpus there\n", argv[2]);
    return 2;
  }
  for (const Bytes& bytes : corpus) LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  std::mt19937_64 random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(strtol(argv[1], nullptr, 10));
  uint64_t runs = 0;
  while (std::chrono::steady_clock::now() < end) {
    const Bytes bytes = mutated(corpus, random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    ++runs;
  }
  printf("%llu runs\n", static_cast<unsigned long long>(runs));
  return runs > 0 ? 0 : 1;
}
