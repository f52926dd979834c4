// SPDX-License-Identifier: Apache-2.0
//
// Physical memory of the virtual memory interface. It lives as long as a handle or a mapping of it does, and
// is charged that long to the slice of the GPU it lies on, whatever context is current. Memory of the host is
// not charged; memory that was imported is charged to the process that made it.
#include "interpose/vmm.h"

#include <sys/mman.h>

#include "interpose/futex_lock.h"
#include "interpose/locations.h"
#include "limiter/address_table.h"

namespace hook {

// A program may hold a hundred thousand of these: 16 bytes each.
struct Physical {
  uint64_t content;  // of_memory(), or the key of a multicast object, which has no memory of its own
  uint32_t handles;
  uint32_t mappings;  // and other uses
};

namespace {

// What a Physical stands for: bytes in the lower 48 bits, then 4 slice, 4 gpu; the top bit tells a multicast
// object's key.
constexpr int kSliceShift = 48;
constexpr int kGpuShift = 52;
static_assert(kMaxSlices == 16 && shm::kMaxGpus == 16);

constexpr bool is_multicast(uint64_t content) { return (content & multicast_key(0)) != 0; }

uint64_t of_memory(const SliceGpu& gpu, uint64_t bytes) {
  const auto slice = static_cast<uint64_t>(gpu.slice - session().slices);
  return slice << kSliceShift | static_cast<uint64_t>(gpu.index) << kGpuShift | bytes;
}

SliceGpu gpu_of(uint64_t content) {
  if (is_multicast(content)) return {};
  return {&session().slices[content >> kSliceShift & 0xf], static_cast<int>(content >> kGpuShift & 0xf)};
}

struct Mapping {
  Physical* physical;
  uint64_t address;
  uint64_t bytes;
  Mapping* next;  // while it is being unmapped
};

struct Binding {
  Physical* physical;
  BoundRegion region;
  Binding* next;  // of the same owner, or while it is dropped
};

// Nodes of one kind, from pages that are never given back. Under `books`.
template <typename T>
class Nodes {
 public:
  T* make() {
    if (free_ == nullptr && !add_pages()) return nullptr;
    Node* node = free_;
    free_ = node->next_free;
    return &node->used;
  }
  void give(T* used) {
    auto* node = reinterpret_cast<Node*>(used);  // a union begins with each of its members
    node->next_free = free_;
    free_ = node;
  }

 private:
  union Node {
    T used;
    Node* next_free;
  };

  bool add_pages() {
    constexpr size_t kBytes = 32 << 10;
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    auto* nodes = static_cast<Node*>(memory);
    for (size_t i = kBytes / sizeof(Node); i-- > 0;) {
      nodes[i].next_free = free_;
      free_ = &nodes[i];
    }
    return true;
  }

  Node* free_ = nullptr;
};

constinit gate::FutexLock books;  // of everything below; never held across a call into the driver
constinit Nodes<Physical> physicals;
constinit Nodes<Mapping> mappings;
constinit Nodes<Binding> bindings;
constinit limiter::AddressTable physical_by_handle;  // Physical*
constinit limiter::AddressTable mapping_by_address;  // Mapping*, by its first address
constinit limiter::AddressTable bindings_by_owner;   // Binding*, a list

template <typename T>
T* find_in(const limiter::AddressTable& table, uint64_t key) {
  uint64_t value;
  return table.find(key, &value) ? reinterpret_cast<T*>(value) : nullptr;
}

template <typename T>
T* take_from(limiter::AddressTable& table, uint64_t key) {
  uint64_t value;
  return table.take(key, &value) ? reinterpret_cast<T*>(value) : nullptr;
}

uint64_t as_value(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// What came to an end, to be finished once the lock is free.
constexpr uint64_t kNothing = 0;  // no memory has 0 bytes
using Ended = uint64_t;           // a Physical's content, or kNothing

// Ends the record of memory that has no use any more.
Ended end_if_unused(Physical* physical) {
  if (physical->handles != 0 || physical->mappings != 0) return kNothing;
  const Ended ended = physical->content;
  physicals.give(physical);
  return ended;
}

void finish(Ended ended) {
  if (ended == kNothing) return;
  if (is_multicast(ended)) {
    unbind_all(ended);
  } else {
    give_back(InFlight(gpu_of(ended)), ended & shm::kLedgerBytesMask);
  }
}

bool remember_physical(CUmemGenericAllocationHandle handle, uint64_t content) {
  const gate::Locked locked(books);
  Physical* physical = physicals.make();
  if (physical == nullptr) return false;
  *physical = {content, 1, 0};
  if (physical_by_handle.insert(handle, as_value(physical))) return true;
  physicals.give(physical);
  return false;
}

// The mapping that `address` lies in, which may begin some granules before it.
Mapping* mapping_around(uint64_t address) {
  constexpr uint64_t kFarthest = uint64_t{64} << 30;
  for (uint64_t back = 0; back <= kFarthest && back <= address; back += kGranule) {
    const uint64_t start = (address & ~(kGranule - 1)) - back;
    if (Mapping* mapping = find_in<Mapping>(mapping_by_address, start)) {
      return address - start < mapping->bytes ? mapping : nullptr;
    }
  }
  return nullptr;
}

// Takes the records of all mappings in a range away, in a list.
Mapping* take_mappings(uint64_t address, uint64_t bytes) {
  Mapping* list = nullptr;
  const uint64_t end = address + bytes;
  while (address < end) {
    Mapping* mapping = take_from<Mapping>(mapping_by_address, address);
    if (mapping == nullptr) {
      address += kGranule;  // of an import, or of the host
      continue;
    }
    mapping->next = list;
    list = mapping;
    address += mapping->bytes;
  }
  return list;
}

// Takes the bindings of an owner away that match, in a list.
template <typename Matches>
Binding* take_bindings(uint64_t owner, Matches matches) {
  const gate::Locked locked(books);
  auto* rest = take_from<Binding>(bindings_by_owner, owner);
  Binding* taken = nullptr;
  Binding* kept = nullptr;
  while (rest != nullptr) {
    Binding* binding = rest;
    rest = binding->next;
    Binding*& list = matches(binding->region) ? taken : kept;
    binding->next = list;
    list = binding;
  }
  if (kept != nullptr) bindings_by_owner.insert(owner, as_value(kept));  // into the place that was just freed
  return taken;
}

void drop_bindings(Binding* list) {
  while (list != nullptr) {
    Binding* binding = list;
    list = binding->next;
    Physical* physical = binding->physical;
    {
      const gate::Locked locked(books);
      bindings.give(binding);
    }
    drop_use(physical);
  }
}

bool same_region(const BoundRegion& a, const BoundRegion& b) {
  return a.part == b.part && a.offset == b.offset && a.extent == b.extent;
}

Physical* use(Physical* physical) {
  if (physical != nullptr) physical->mappings++;
  return physical;
}

}  // namespace

Physical* use_handle(CUmemGenericAllocationHandle handle) {
  const gate::Locked locked(books);
  return use(find_in<Physical>(physical_by_handle, handle));
}

Physical* use_address(CUdeviceptr address) {
  const gate::Locked locked(books);
  const Mapping* mapping = mapping_around(address);
  return use(mapping != nullptr ? mapping->physical : nullptr);
}

void drop_use(Physical* physical) {
  if (physical == nullptr) return;
  Ended ended = kNothing;
  {
    const gate::Locked locked(books);
    physical->mappings--;
    ended = end_if_unused(physical);
  }
  finish(ended);
}

void bind(uint64_t owner, const BoundRegion& region, Physical* physical) {
  unbind(owner, region);
  if (physical == nullptr) return;
  const gate::Locked locked(books);
  Binding* binding = bindings.make();
  if (binding == nullptr) return;
  *binding = {physical, region, take_from<Binding>(bindings_by_owner, owner)};
  bindings_by_owner.insert(owner, as_value(binding));
}

void unbind(uint64_t owner, const BoundRegion& region) {
  drop_bindings(take_bindings(owner, [&](const BoundRegion& bound) { return same_region(bound, region); }));
}

void unbind_within(uint64_t owner, const BoundRegion& region) {
  drop_bindings(take_bindings(owner, [&](const BoundRegion& bound) {
    return (bound.part == region.part || bound.part == kAnyPart) && bound.offset >= region.offset &&
           bound.offset + bound.extent <= region.offset + region.extent;
  }));
}

void unbind_all(uint64_t owner) {
  drop_bindings(take_bindings(owner, [](const BoundRegion&) { return true; }));
}

bool has_bindings(uint64_t owner) { return find_in<Binding>(bindings_by_owner, owner) != nullptr; }

void remember_multicast(CUmemGenericAllocationHandle object) {
  {
    const gate::Locked locked(books);
    if (find_in<Physical>(physical_by_handle, object) != nullptr) return;
  }
  remember_physical(object, multicast_key(object));
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                     unsigned long long flags) noexcept {
  const auto call = [=] { return real<fn::cuMemCreate>(handle, size, prop, flags); };
  if (handle == nullptr || prop == nullptr || size == 0 || !is_on_device(prop->location)) return call();
  const CUdevice device = device_of(prop->location);
  SliceGpu gpu;
  const Standing standing = standing_on_device(device, &gpu);
  if (const CUresult refused = barred(standing, device); refused != CUDA_SUCCESS) return refused;
  if (standing == Standing::kUnlimited) return call();
  InFlight in_flight(gpu);
  if (const CUresult refused = take("cuMemCreate", in_flight, size); refused != CUDA_SUCCESS) return refused;
  CUresult result = ask_driver("cuMemCreate", in_flight, size, call);
  if (result == CUDA_SUCCESS && !remember_physical(*handle, of_memory(gpu, size))) {
    real<fn::cuMemRelease>(*handle);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) give_back(in_flight, size);
  return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) noexcept {
  Physical* physical = nullptr;
  SliceGpu gpu;
  {
    const gate::Locked locked(books);
    physical = find_in<Physical>(physical_by_handle, handle);
    // The last release frees the handle for others to get: its record goes first.
    if (physical != nullptr && physical->handles == 1) take_from<Physical>(physical_by_handle, handle);
    if (physical != nullptr) gpu = gpu_of(physical->content);
  }
  const InFlight in_flight(gpu);
  const CUresult result = real<fn::cuMemRelease>(handle);
  if (physical == nullptr) return result;
  Ended ended = kNothing;
  {
    const gate::Locked locked(books);
    if (result == CUDA_SUCCESS) {
      physical->handles--;
      ended = end_if_unused(physical);
    } else if (find_in<Physical>(physical_by_handle, handle) == nullptr) {
      physical_by_handle.insert(handle, as_value(physical));
    }
  }
  finish(ended);
  return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) noexcept {
  Mapping* mapping = nullptr;
  Physical* physical = nullptr;
  SliceGpu gpu;
  {
    const gate::Locked locked(books);
    physical = find_in<Physical>(physical_by_handle, handle);
    if (physical != nullptr) {
      gpu = gpu_of(physical->content);
      mapping = mappings.make();
      if (mapping == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
      // From here on: another thread may release the handle while the driver maps it.
      physical->mappings++;
      *mapping = {physical, ptr, size, nullptr};
    }
  }
  // Taking back the mapping may end the last use.
  const InFlight in_flight(gpu);
  CUresult result = real<fn::cuMemMap>(ptr, size, offset, handle, flags);
  if (physical == nullptr) return result;
  Ended ended = kNothing;
  {
    const gate::Locked locked(books);
    if (result == CUDA_SUCCESS && mapping_by_address.insert(ptr, as_value(mapping))) return result;
    physical->mappings--;
    mappings.give(mapping);
    ended = end_if_unused(physical);
  }
  if (result == CUDA_SUCCESS) {
    real<fn::cuMemUnmap>(ptr, size);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  finish(ended);
  return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) noexcept {
  Mapping* list = nullptr;
  {
    const gate::Locked locked(books);
    list = take_mappings(ptr, size);
  }
  if (list == nullptr) return real<fn::cuMemUnmap>(ptr, size);
  const InFlightOnAll in_flight;
  const CUresult result = real<fn::cuMemUnmap>(ptr, size);
  while (list != nullptr) {
    Ended ended = kNothing;
    {
      const gate::Locked locked(books);
      Mapping* mapping = list;
      list = mapping->next;
      if (result != CUDA_SUCCESS) {
        mapping_by_address.insert(mapping->address, as_value(mapping));
        continue;
      }
      mapping->physical->mappings--;
      ended = end_if_unused(mapping->physical);
      mappings.give(mapping);
    }
    finish(ended);
  }
  return result;
}

// One more use of memory that is mapped: by the handle that is known already, or by a new one.
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) noexcept {
  const CUresult result = real<fn::cuMemRetainAllocationHandle>(handle, addr);
  if (result != CUDA_SUCCESS) return result;
  const gate::Locked locked(books);
  if (Physical* physical = find_in<Physical>(physical_by_handle, *handle)) {
    physical->handles++;
  } else if (const Mapping* mapping = mapping_around(reinterpret_cast<uint64_t>(addr))) {
    if (physical_by_handle.insert(*handle, as_value(mapping->physical))) mapping->physical->handles++;
  }
  return result;
}

// A handle that we know was made in this process: the import is one more use of it.
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                        CUmemAllocationHandleType shHandleType) noexcept {
  const CUresult result = real<fn::cuMemImportFromShareableHandle>(handle, osHandle, shHandleType);
  if (result != CUDA_SUCCESS) return result;
  const gate::Locked locked(books);
  if (Physical* physical = find_in<Physical>(physical_by_handle, *handle)) physical->handles++;
  return result;
}

void forget_physical_memory() {
  books.reset();
  physical_by_handle.forget();
  mapping_by_address.forget();
  bindings_by_owner.forget();
}

}  // namespace hook
