// SPDX-License-Identifier: Apache-2.0
//
// take_to_refusal WAY QUOTA_MIB: takes memory by one API until it is refused, in ever smaller pieces. The
// refusal is CUDA_ERROR_OUT_OF_MEMORY and comes at the quota to within what the driver takes at a time,
// context included; what is freed can be taken again.
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "behaviour.h"

namespace {

struct Piece {
  uint64_t handle;
  uint64_t address;
  uint64_t bytes;
};

CUdevice device;
CUmemoryPool own_pool;

CUmemAllocationProp on_device() {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  return prop;
}

CUDA_ARRAY3D_DESCRIPTOR rows_of_2_mib(uint64_t bytes) {
  CUDA_ARRAY3D_DESCRIPTOR array = {};
  array.Width = 32768;
  array.Height = bytes / (32768 * 16);
  array.Format = CU_AD_FORMAT_FLOAT;
  array.NumChannels = 4;
  return array;
}

struct Way {
  CUresult (*take)(uint64_t bytes, Piece* piece);
  CUresult (*free)(const Piece& piece);
  uint64_t granule = kGranule;  // the driver takes multiples of it from the GPU
};

constexpr uint64_t kPoolGranule = 32 * kMiB;

CUresult free_linear(const Piece& piece) { return cuMemFree(piece.address); }
CUresult free_async(const Piece& piece) {
  const CUresult result = cuMemFreeAsync(piece.address, nullptr);
  cuStreamSynchronize(nullptr);
  return result;
}

const std::map<std::string, Way> kWays = {
    {"cuMemAlloc",
     {[](uint64_t bytes, Piece* piece) {
        CUdeviceptr pointer;
        const CUresult result = cuMemAlloc(&pointer, bytes);
        piece->address = pointer;
        return result;
      },
      free_linear}},
    {"cuMemAllocPitch",
     {[](uint64_t bytes, Piece* piece) {
        CUdeviceptr pointer;
        size_t pitch;
        const CUresult result = cuMemAllocPitch(&pointer, &pitch, 4096, bytes / 4096, 4);
        piece->address = pointer;
        return result;
      },
      free_linear}},
    {"cuMemAllocManaged",
     {[](uint64_t bytes, Piece* piece) {
        CUdeviceptr pointer;
        const CUresult result = cuMemAllocManaged(&pointer, bytes, CU_MEM_ATTACH_GLOBAL);
        piece->address = pointer;
        return result;
      },
      free_linear}},
    {"cuMemAllocAsync",
     {[](uint64_t bytes, Piece* piece) {
        CUdeviceptr pointer;
        const CUresult result = cuMemAllocAsync(&pointer, bytes, nullptr);
        piece->address = pointer;
        return result;
      },
      free_async, kPoolGranule}},
    {"cuMemAllocFromPoolAsync",
     {[](uint64_t bytes, Piece* piece) {
        CUdeviceptr pointer;
        const CUresult result = cuMemAllocFromPoolAsync(&pointer, bytes, own_pool, nullptr);
        piece->address = pointer;
        return result;
      },
      free_async, kPoolGranule}},
    {"cuMemCreate",
     {[](uint64_t bytes, Piece* piece) {
        const CUmemAllocationProp prop = on_device();
        CUmemGenericAllocationHandle handle;
        const CUresult result = cuMemCreate(&handle, bytes, &prop, 0);
        if (result != CUDA_SUCCESS) return result;
        CUdeviceptr address;
        OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
        OK(cuMemMap(address, bytes, 0, handle, 0));
        // The mapping keeps the memory.
        OK(cuMemRelease(handle));
        piece->address = address;
        return result;
      },
      [](const Piece& piece) {
        const CUresult result = cuMemUnmap(piece.address, piece.bytes);
        OK(cuMemAddressFree(piece.address, piece.bytes));
        return result;
      }}},
    {"cuArrayCreate",
     {[](uint64_t bytes, Piece* piece) {
        const CUDA_ARRAY3D_DESCRIPTOR rows = rows_of_2_mib(bytes);
        const CUDA_ARRAY_DESCRIPTOR plane = {rows.Width, rows.Height, rows.Format, rows.NumChannels};
        CUarray array;
        const CUresult result = cuArrayCreate(&array, &plane);
        piece->handle = reinterpret_cast<uint64_t>(array);
        return result;
      },
      [](const Piece& piece) { return cuArrayDestroy(reinterpret_cast<CUarray>(piece.handle)); }}},
    {"cuArray3DCreate",
     {[](uint64_t bytes, Piece* piece) {
        CUDA_ARRAY3D_DESCRIPTOR rows = rows_of_2_mib(bytes);
        rows.Width /= 4;
        rows.Depth = 4;
        CUarray array;
        const CUresult result = cuArray3DCreate(&array, &rows);
        piece->handle = reinterpret_cast<uint64_t>(array);
        return result;
      },
      [](const Piece& piece) { return cuArrayDestroy(reinterpret_cast<CUarray>(piece.handle)); }}},
    {"cuMipmappedArrayCreate",
     {[](uint64_t bytes, Piece* piece) {
        const CUDA_ARRAY3D_DESCRIPTOR rows = rows_of_2_mib(bytes);
        CUmipmappedArray array;
        const CUresult result = cuMipmappedArrayCreate(&array, &rows, 1);
        piece->handle = reinterpret_cast<uint64_t>(array);
        return result;
      },
      [](const Piece& piece) {
        return cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(piece.handle));
      }}},
};

uint64_t take_all(const Way& way, std::vector<Piece>* pieces) {
  uint64_t taken = 0;
  for (uint64_t bytes = 256 * kMiB; bytes >= kGranule;) {
    Piece piece = {0, 0, bytes};
    const CUresult result = way.take(bytes, &piece);
    if (result == CUDA_SUCCESS) {
      pieces->push_back(piece);
      taken += bytes;
      continue;
    }
    MUST_BE(result, CUDA_ERROR_OUT_OF_MEMORY);
    bytes /= 2;
  }
  return taken;
}

void free_all(const Way& way, std::vector<Piece>* pieces) {
  for (const Piece& piece : *pieces) OK(way.free(piece));
  pieces->clear();
}

}  // namespace

int main(int argc, char** argv) {
  const Way& way = kWays.at(argc > 1 ? argv[1] : "");
  const uint64_t quota = argument(argc, argv, 2) * kMiB;
  device = start();
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  OK(cuMemPoolCreate(&own_pool, &props));

  size_t free, total;
  OK(cuMemGetInfo(&free, &total));
  MUST(total == quota);
  MUST(free < quota);  // the context is in there

  std::vector<Piece> pieces;
  const uint64_t taken = take_all(way, &pieces);
  printf("free %zu MiB, taken %zu MiB\n", free / kMiB, size_t(taken / kMiB));
  MUST(taken <= free && free - taken < way.granule);
  MUST(free_bytes() < way.granule);

  free_all(way, &pieces);
  MUST(free_bytes() == free);
  MUST(take_all(way, &pieces) == taken);
  free_all(way, &pieces);
  OK(cuMemPoolDestroy(own_pool));
  return finish();
}
