// SPDX-License-Identifier: Apache-2.0
//
// Numbers and labels of State::counters, for tools that print them.
#pragma once

#include "shm/layout.h"

namespace shm {

struct CounterLabel {
  Counter counter;
  const char* name;  // as in `cuslicectl ls --json`
  const char* meaning;
};

inline constexpr CounterLabel kCounterLabels[] = {
    {kRefusals, "refusals", "requests for memory refused at the quota"},
    {kUnclassifiedLookups, "unclassified_lookups", "driver functions looked up that the table does not know"},
    {kPacedLaunches, "paced_launches", "launches that paced themselves because the broker was silent"},
    {kReadmittedLaunches, "readmitted_launches",
     "launches let through while draining because nothing completed"},
    {kReservationRetries, "reservation_retries", "reservations tried again because a peer's was under way"},
    {kDriverRefusals, "driver_refusals", "requests within the quota for which the GPU had no memory"},
    {kSlotsFull, "slots_full", "processes turned away because the slice had no slot left"},
};
static_assert(sizeof kCounterLabels / sizeof kCounterLabels[0] == kCounterCount);

}  // namespace shm
