// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/status.h"

namespace broker {

using Uuid = std::array<uint8_t, 16>;

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as NVML and CUDA write it.
std::string format_uuid(const uint8_t (&uuid)[16]);
std::optional<Uuid> parse_uuid(std::string_view text);

// A GPU of this node, as NVML shows it.
struct NodeGpu {
  int index = 0;
  Uuid uuid = {};
  std::string uuid_text;
  std::string name;
  uint64_t device_bytes = 0;     // what cuDeviceTotalMem says: NVML's total less what the driver keeps
  uint32_t multiprocessors = 0;  // 0: not known
};

struct ProcessMemory {
  uint32_t pid;
  uint64_t used_bytes;
};

// The driver's own view of the node. libnvidia-ml is opened at run time, so the broker starts (and says what
// is missing) where there is none. Thread-safe, as NVML is.
class Nvml {
 public:
  // kSystem: no library, no driver, or no GPU; the text says which.
  static Status open(std::unique_ptr<Nvml>* nvml);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const std::vector<NodeGpu>& gpus() const { return gpus_; }
  const std::string& driver_version() const { return driver_version_; }

  // Processes with a context on the GPU. false: NVML failed, nothing is known.
  bool processes(int gpu, std::vector<ProcessMemory>* processes) const;
  // Memory in use on the GPU by anybody; 0 if NVML failed.
  uint64_t used_bytes(int gpu) const;
  // Of the driver's last sampling period; 0 if NVML failed.
  uint32_t busy_percent(int gpu) const;

 private:
  struct Library;

  Nvml();

  std::unique_ptr<Library> library_;
  std::vector<NodeGpu> gpus_;
  std::string driver_version_;
};

}  // namespace broker
