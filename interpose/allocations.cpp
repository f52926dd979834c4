// SPDX-License-Identifier: Apache-2.0
#include "interpose/allocations.h"

#include "interpose/futex_lock.h"
#include "limiter/address_table.h"

namespace hook {
namespace {

constinit limiter::AddressTable records;

// Contexts have numbers, so that a record is one word. They come round after 2^16 contexts of one process.
constinit limiter::AddressTable context_numbers;
constinit gate::FutexLock numbering;
constinit uint16_t next_context_number = 1;  // under `numbering`

// A record: units of kSmallGranule in the upper 39 bits (256 TiB), then 1 bit managed, 4 slice, 4 gpu, 16
// context.
constexpr int kUnitsShift = 25;
constexpr int kManagedShift = 24;
constexpr int kSliceShift = 20;
constexpr int kGpuShift = 16;
static_assert(kMaxSlices == 16 && shm::kMaxGpus == 16);

uint64_t pack(const Allocation& allocation, uint16_t context) {
  const auto slice = static_cast<uint64_t>(allocation.gpu.slice - session().slices);
  return allocation.bytes / kSmallGranule << kUnitsShift | uint64_t{allocation.managed} << kManagedShift |
         slice << kSliceShift | static_cast<uint64_t>(allocation.gpu.index) << kGpuShift | context;
}

Allocation unpack(uint64_t record) {
  const AttachedSlice* slice = &session().slices[record >> kSliceShift & 0xf];
  return {{slice, static_cast<int>(record >> kGpuShift & 0xf)},
          (record >> kUnitsShift) * kSmallGranule,
          (record >> kManagedShift & 1) != 0};
}

uint16_t context_in(uint64_t record) { return static_cast<uint16_t>(record); }

// 0: no context, or no memory to number it; such an allocation ends with a free only.
uint16_t number_of(CUcontext context) {
  if (context == nullptr) return 0;
  const auto key = reinterpret_cast<uint64_t>(context);
  uint64_t number;
  if (context_numbers.find(key, &number)) [[likely]]
    return static_cast<uint16_t>(number);
  const gate::Locked locked(numbering);
  if (context_numbers.find(key, &number)) return static_cast<uint16_t>(number);
  number = next_context_number;
  next_context_number = static_cast<uint16_t>(number == UINT16_MAX ? 1 : number + 1);
  return context_numbers.insert(key, number) ? static_cast<uint16_t>(number) : 0;
}

uint16_t number_of_current_context() {
  CUcontext context = nullptr;
  return real<fn::cuCtxGetCurrent>(&context) == CUDA_SUCCESS ? number_of(context) : 0;
}

}  // namespace

bool remember(uint64_t key, const Allocation& allocation) {
  return records.insert(key, pack(allocation, number_of_current_context()));
}

bool take_record(uint64_t key, uint64_t* record) { return records.take(key, record); }

void put_record_back(uint64_t key, uint64_t record) {
  // It was there a moment ago, so there is room; if others took it, the bytes stay charged until the process
  // ends.
  records.insert(key, record);
}

SliceGpu gpu_in_record(uint64_t record) { return unpack(record).gpu; }

void give_record_back(const InFlight& call, uint64_t record) {
  const Allocation allocation = unpack(record);
  if (allocation.managed) add_managed(call, -static_cast<int64_t>(allocation.bytes));
  give_back_with_waste(call, allocation.bytes);
}

void context_is_gone(const InFlight& call, CUcontext context) {
  uint64_t number;
  if (!context_numbers.take(reinterpret_cast<uint64_t>(context), &number)) return;
  records.take_all([&](uint64_t record) { return context_in(record) == number; },
                   [&](uint64_t record) { give_record_back(call, record); });
}

void belongs_to(CUcontext context, CUcontext owner) {
  const uint16_t number = number_of(owner);
  const gate::Locked locked(numbering);
  const auto key = reinterpret_cast<uint64_t>(context);
  uint64_t old;
  context_numbers.take(key, &old);
  if (number != 0) context_numbers.insert(key, number);
}

void belongs_to_nobody(CUcontext context) {
  const gate::Locked locked(numbering);
  uint64_t old;
  context_numbers.take(reinterpret_cast<uint64_t>(context), &old);
}

void forget_allocations() {
  numbering.reset();
  records.forget();
  context_numbers.forget();
}

}  // namespace hook
