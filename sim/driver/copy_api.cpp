// SPDX-License-Identifier: Apache-2.0
//
// cuMemcpy*, cuMemset* and their kin. A synchronous copy is an asynchronous one in the default stream and a
// wait.
#include <algorithm>

#include "sim/driver/arrays.h"
#include "sim/driver/capture.h"
#include "sim/driver/copy.h"
#include "sim/driver/memory.h"
#include "sim/driver/stream.h"

namespace sim {
namespace {

enum class Side { kHost, kDevice, kUnified };

CUDA_MEMCPY3D linear(Side to_side, uint64_t to, Side from_side, uint64_t from, size_t bytes) {
  const auto type = [](Side side) {
    if (side == Side::kHost) return CU_MEMORYTYPE_HOST;
    return side == Side::kDevice ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED;
  };
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = type(from_side);
  copy.srcHost = reinterpret_cast<const void*>(from);
  copy.srcDevice = from;
  copy.dstMemoryType = type(to_side);
  copy.dstHost = reinterpret_cast<void*>(to);
  copy.dstDevice = to;
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  copy.Depth = 1;
  return copy;
}

uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

CUDA_MEMCPY3D from_2d(const CUDA_MEMCPY2D& p) {
  CUDA_MEMCPY3D copy{};
  copy.srcXInBytes = p.srcXInBytes;
  copy.srcY = p.srcY;
  copy.srcMemoryType = p.srcMemoryType;
  copy.srcHost = p.srcHost;
  copy.srcDevice = p.srcDevice;
  copy.srcArray = p.srcArray;
  copy.srcPitch = p.srcPitch;
  copy.dstXInBytes = p.dstXInBytes;
  copy.dstY = p.dstY;
  copy.dstMemoryType = p.dstMemoryType;
  copy.dstHost = p.dstHost;
  copy.dstDevice = p.dstDevice;
  copy.dstArray = p.dstArray;
  copy.dstPitch = p.dstPitch;
  copy.WidthInBytes = p.WidthInBytes;
  copy.Height = p.Height;
  copy.Depth = 1;
  return copy;
}

CUDA_MEMCPY3D from_peer(const CUDA_MEMCPY3D_PEER& p) {
  CUDA_MEMCPY3D copy{};
  copy.srcXInBytes = p.srcXInBytes;
  copy.srcY = p.srcY;
  copy.srcZ = p.srcZ;
  copy.srcMemoryType = p.srcMemoryType;
  copy.srcHost = p.srcHost;
  copy.srcDevice = p.srcDevice;
  copy.srcArray = p.srcArray;
  copy.srcPitch = p.srcPitch;
  copy.srcHeight = p.srcHeight;
  copy.dstXInBytes = p.dstXInBytes;
  copy.dstY = p.dstY;
  copy.dstZ = p.dstZ;
  copy.dstMemoryType = p.dstMemoryType;
  copy.dstHost = p.dstHost;
  copy.dstDevice = p.dstDevice;
  copy.dstArray = p.dstArray;
  copy.dstPitch = p.dstPitch;
  copy.dstHeight = p.dstHeight;
  copy.WidthInBytes = p.WidthInBytes;
  copy.Height = p.Height;
  copy.Depth = p.Depth;
  return copy;
}

CUDA_MEMCPY3D with_array(CUarray array, size_t offset, CUdeviceptr other, const void* host, size_t bytes,
                         bool to_array) {
  const bool on_host = host != nullptr;
  const Side side = on_host ? Side::kHost : Side::kDevice;
  const uint64_t where = on_host ? address(host) : other;
  CUDA_MEMCPY3D copy = linear(side, where, side, where, bytes);
  if (to_array) {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.dstXInBytes = offset;
  } else {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = array;
    copy.srcXInBytes = offset;
  }
  return copy;
}

CUresult copy_async(const CUDA_MEMCPY3D& copy, CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = find_stream(handle, &stream)) return error;
  // In a capture, memory may be meant that exists only once the graph runs.
  if (!stream->capturing) {
    if (CUresult error = check_copy(copy)) return error;
  }
  return perform(stream, CopyMemory{copy});
}

CUresult copy_now(const CUDA_MEMCPY3D& copy) {
  CUstream_st* stream;
  if (CUresult error = find_stream(nullptr, &stream)) return error;
  if (CUresult error = refuse_during_capture()) return error;
  if (CUresult error = check_copy(copy)) return error;
  if (CUresult error = perform(stream, CopyMemory{copy})) return error;
  return synchronize_stream(stream);
}

CUDA_MEMSET_NODE_PARAMS_v2 plane(CUdeviceptr to, size_t pitch, unsigned value, unsigned element_bytes,
                                 size_t width, size_t height) {
  return {to, pitch, value, element_bytes, width, height, nullptr};
}

CUresult set_async(const CUDA_MEMSET_NODE_PARAMS_v2& set, CUstream handle) {
  CUstream_st* stream;
  if (CUresult error = find_stream(handle, &stream)) return error;
  if (set.width == 0 || set.height == 0) return CUDA_SUCCESS;
  const uint64_t row_bytes = uint64_t{set.width} * set.elementSize;
  const uint64_t extent = row_bytes + (set.height - 1) * set.pitch;
  if (set.height > 1 && set.pitch < row_bytes) return CUDA_ERROR_INVALID_VALUE;
  if (set.dst % set.elementSize != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!stream->capturing && !is_known_memory(set.dst, extent)) return CUDA_ERROR_INVALID_VALUE;
  return perform(stream, SetMemory{set});
}

CUresult set_now(const CUDA_MEMSET_NODE_PARAMS_v2& set) {
  // As the driver's: on device memory it returns before it is done.
  if (CUresult error = refuse_during_capture()) return error;
  return set_async(set, nullptr);
}

}  // namespace
}  // namespace sim

using sim::address;
using sim::Side;

SIM_API(cuMemcpy)(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return sim::copy_now(sim::linear(Side::kUnified, to, Side::kUnified, from, bytes));
}
SIM_API(cuMemcpyAsync)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return sim::copy_async(sim::linear(Side::kUnified, to, Side::kUnified, from, bytes), stream);
}
SIM_API(cuMemcpyPeer)(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  return sim::copy_now(sim::linear(Side::kDevice, to, Side::kDevice, from, bytes));
}
SIM_API(cuMemcpyPeerAsync)
(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream) {
  return sim::copy_async(sim::linear(Side::kDevice, to, Side::kDevice, from, bytes), stream);
}
SIM_API(cuMemcpyHtoD_v2)(CUdeviceptr to, const void* from, size_t bytes) {
  return sim::copy_now(sim::linear(Side::kDevice, to, Side::kUnified, address(from), bytes));
}
SIM_API(cuMemcpyHtoDAsync_v2)(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return sim::copy_async(sim::linear(Side::kDevice, to, Side::kUnified, address(from), bytes), stream);
}
SIM_API(cuMemcpyDtoH_v2)(void* to, CUdeviceptr from, size_t bytes) {
  return sim::copy_now(sim::linear(Side::kUnified, address(to), Side::kDevice, from, bytes));
}
SIM_API(cuMemcpyDtoHAsync_v2)(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return sim::copy_async(sim::linear(Side::kUnified, address(to), Side::kDevice, from, bytes), stream);
}
SIM_API(cuMemcpyDtoD_v2)(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return sim::copy_now(sim::linear(Side::kDevice, to, Side::kDevice, from, bytes));
}
SIM_API(cuMemcpyDtoDAsync_v2)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return sim::copy_async(sim::linear(Side::kDevice, to, Side::kDevice, from, bytes), stream);
}

SIM_API(cuMemcpyDtoA_v2)(CUarray array, size_t offset, CUdeviceptr from, size_t bytes) {
  return sim::copy_now(sim::with_array(array, offset, from, nullptr, bytes, true));
}
SIM_API(cuMemcpyAtoD_v2)(CUdeviceptr to, CUarray array, size_t offset, size_t bytes) {
  return sim::copy_now(sim::with_array(array, offset, to, nullptr, bytes, false));
}
SIM_API(cuMemcpyHtoA_v2)(CUarray array, size_t offset, const void* from, size_t bytes) {
  return sim::copy_now(sim::with_array(array, offset, 0, from, bytes, true));
}
SIM_API(cuMemcpyAtoH_v2)(void* to, CUarray array, size_t offset, size_t bytes) {
  return sim::copy_now(sim::with_array(array, offset, 0, to, bytes, false));
}
SIM_API(cuMemcpyHtoAAsync_v2)(CUarray array, size_t offset, const void* from, size_t bytes, CUstream stream) {
  return sim::copy_async(sim::with_array(array, offset, 0, from, bytes, true), stream);
}
SIM_API(cuMemcpyAtoHAsync_v2)(void* to, CUarray array, size_t offset, size_t bytes, CUstream stream) {
  return sim::copy_async(sim::with_array(array, offset, 0, to, bytes, false), stream);
}
SIM_API(cuMemcpyAtoA_v2)(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
  CUDA_MEMCPY3D copy = sim::with_array(from, from_offset, 0, nullptr, bytes, false);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = to;
  copy.dstXInBytes = to_offset;
  return sim::copy_now(copy);
}

SIM_API(cuMemcpy2D_v2)(const CUDA_MEMCPY2D* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : sim::copy_now(sim::from_2d(*copy));
}
SIM_API(cuMemcpy2DUnaligned_v2)(const CUDA_MEMCPY2D* copy) { return sim_cuMemcpy2D_v2(copy); }
SIM_API(cuMemcpy2DAsync_v2)(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : sim::copy_async(sim::from_2d(*copy), stream);
}
SIM_API(cuMemcpy3D_v2)(const CUDA_MEMCPY3D* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : sim::copy_now(*copy);
}
SIM_API(cuMemcpy3DAsync_v2)(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : sim::copy_async(*copy, stream);
}
SIM_API(cuMemcpy3DPeer)(const CUDA_MEMCPY3D_PEER* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : sim::copy_now(sim::from_peer(*copy));
}
SIM_API(cuMemcpy3DPeerAsync)(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : sim::copy_async(sim::from_peer(*copy), stream);
}

SIM_API(cuMemcpyBatchAsync)
(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count, CUmemcpyAttributes*, size_t*, size_t,
 size_t* failed, CUstream stream) {
  if (to == nullptr || from == nullptr || bytes == nullptr || stream == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (failed != nullptr) *failed = i;
    if (CUresult error = sim_cuMemcpyAsync(to[i], from[i], bytes[i], stream)) return error;
  }
  if (failed != nullptr) *failed = SIZE_MAX;
  return CUDA_SUCCESS;
}
SIM_API(cuMemcpyBatchAsync_v2)
(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count, CUmemcpyAttributes* attributes,
 size_t* indices, size_t attribute_count, CUstream stream) {
  return sim_cuMemcpyBatchAsync(to, from, bytes, count, attributes, indices, attribute_count, nullptr,
                                stream);
}

SIM_API(cuMemsetD8_v2)(CUdeviceptr to, unsigned char value, size_t count) {
  return sim::set_now(sim::plane(to, 0, value, 1, count, 1));
}
SIM_API(cuMemsetD16_v2)(CUdeviceptr to, unsigned short value, size_t count) {
  return sim::set_now(sim::plane(to, 0, value, 2, count, 1));
}
SIM_API(cuMemsetD32_v2)(CUdeviceptr to, unsigned value, size_t count) {
  return sim::set_now(sim::plane(to, 0, value, 4, count, 1));
}
SIM_API(cuMemsetD8Async)(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return sim::set_async(sim::plane(to, 0, value, 1, count, 1), stream);
}
SIM_API(cuMemsetD16Async)(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return sim::set_async(sim::plane(to, 0, value, 2, count, 1), stream);
}
SIM_API(cuMemsetD32Async)(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return sim::set_async(sim::plane(to, 0, value, 4, count, 1), stream);
}
SIM_API(cuMemsetD2D8_v2)(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return sim::set_now(sim::plane(to, pitch, value, 1, width, height));
}
SIM_API(cuMemsetD2D16_v2)(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return sim::set_now(sim::plane(to, pitch, value, 2, width, height));
}
SIM_API(cuMemsetD2D32_v2)(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
  return sim::set_now(sim::plane(to, pitch, value, 4, width, height));
}
SIM_API(cuMemsetD2D8Async)
(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) {
  return sim::set_async(sim::plane(to, pitch, value, 1, width, height), stream);
}
SIM_API(cuMemsetD2D16Async)
(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream) {
  return sim::set_async(sim::plane(to, pitch, value, 2, width, height), stream);
}
SIM_API(cuMemsetD2D32Async)
(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream) {
  return sim::set_async(sim::plane(to, pitch, value, 4, width, height), stream);
}

namespace sim {
namespace {

CUresult write_value_async(CUstream handle, CUdeviceptr to, uint64_t value, bool wide) {
  CUstream_st* stream;
  if (CUresult error = find_stream(handle, &stream)) return error;
  if (to % (wide ? 8 : 4) != 0 || !may_touch(to, wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
  return perform(stream, WriteValue{to, value, wide});
}

CUresult wait_value_async(CUstream handle, CUdeviceptr at, uint64_t value, unsigned flags, bool wide) {
  CUstream_st* stream;
  if (CUresult error = find_stream(handle, &stream)) return error;
  if (at % (wide ? 8 : 4) != 0 || !may_touch(at, wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
  return perform(stream, WaitValue{at, value, flags, wide});
}

}  // namespace
}  // namespace sim

SIM_API(cuStreamWriteValue32_v2)(CUstream stream, CUdeviceptr to, cuuint32_t value, unsigned) {
  return sim::write_value_async(stream, to, value, false);
}
SIM_API(cuStreamWriteValue64_v2)(CUstream stream, CUdeviceptr to, cuuint64_t value, unsigned) {
  return sim::write_value_async(stream, to, value, true);
}
SIM_API(cuStreamWaitValue32_v2)(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  return sim::wait_value_async(stream, at, value, flags, false);
}
SIM_API(cuStreamWaitValue64_v2)(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags) {
  return sim::wait_value_async(stream, at, value, flags, true);
}
SIM_API(cuStreamBatchMemOp_v2)
(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned) {
  if (operations == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& op = operations[i];
    CUresult error = CUDA_SUCCESS;
    switch (op.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        error = sim::wait_value_async(stream, op.waitValue.address, op.waitValue.value, op.waitValue.flags,
                                      false);
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        error = sim::wait_value_async(stream, op.waitValue.address, op.waitValue.value64, op.waitValue.flags,
                                      true);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        error = sim::write_value_async(stream, op.writeValue.address, op.writeValue.value, false);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        error = sim::write_value_async(stream, op.writeValue.address, op.writeValue.value64, true);
        break;
      case CU_STREAM_MEM_OP_BARRIER:
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        break;
      default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

// The first forms of these differ in nothing that is simulated.
SIM_API(cuStreamWriteValue32)(CUstream stream, CUdeviceptr to, cuuint32_t value, unsigned flags) {
  return sim_cuStreamWriteValue32_v2(stream, to, value, flags);
}
SIM_API(cuStreamWriteValue64)(CUstream stream, CUdeviceptr to, cuuint64_t value, unsigned flags) {
  return sim_cuStreamWriteValue64_v2(stream, to, value, flags);
}
SIM_API(cuStreamWaitValue32)(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  return sim_cuStreamWaitValue32_v2(stream, at, value, flags);
}
SIM_API(cuStreamWaitValue64)(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags) {
  return sim_cuStreamWaitValue64_v2(stream, at, value, flags);
}
SIM_API(cuStreamBatchMemOp)
(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) {
  return sim_cuStreamBatchMemOp_v2(stream, count, operations, flags);
}

SIM_API(cuMemcpyWithAttributesAsync)
(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes*, CUstream stream) {
  return sim_cuMemcpyAsync(to, from, bytes, stream);
}
