// SPDX-License-Identifier: Apache-2.0
//
// Faults on demand: of a device, by `simgpu fault`, for all processes of the node; and of one process, by
// SIMGPU_FAULT in its environment.
#pragma once

#include <cstdint>
#include <string>

namespace sim {

struct Faults {
  uint32_t lost = 0;            // fallen off the bus
  uint32_t no_memory_info = 0;  // NVML does not tell memory in use, as of boards that share it with the CPU
  uint32_t nvml_delay_us = 0;   // before every answer of NVML
  uint32_t refuse_every = 0;    // so many requests for memory and contexts, and one is refused; 0: none
  uint32_t refuse_at = 0;       // the request of this number, from 1, is refused; 0: none
};

// "lost,no-memory-info,nvml-delay-us=N,refuse-every=N,refuse-at=N", any of them, or "none". False: *error
// says what is wrong.
bool parse_faults(const std::string& text, Faults* faults, std::string* error);

}  // namespace sim
