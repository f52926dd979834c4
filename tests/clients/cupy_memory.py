# SPDX-License-Identifier: Apache-2.0
"""CuPy at the edge of its GPU's memory: its pool, its asynchronous pool, and kernels that it compiles itself."""

import cupy

from client import GIB, MIB, gpu_bytes, hold, report


def out_of_memory(make):
    """The error's text, or nothing if there was none."""
    try:
        make()
    except cupy.cuda.memory.OutOfMemoryError as error:
        return str(error)
    return ""


def work():
    """An own kernel, one of NVRTC's, and two libraries."""
    a = cupy.arange(1000, dtype=cupy.float32) * 2
    add = cupy.RawKernel('extern "C" __global__ void add(float* x) { x[threadIdx.x] += 1; }', "add")
    add((1,), (32,), (a,))
    product = cupy.zeros((64, 64)) @ cupy.zeros((64, 64))
    spectrum = cupy.fft.fft(cupy.zeros(64))
    cupy.cuda.Device().synchronize()
    return product.shape == (64, 64) and spectrum.shape == (64,)


def pool_checks(name, total, free_at_first):
    held = cupy.empty(GIB, dtype=cupy.uint8)
    # What the driver took for the process is measured meanwhile, and was only estimated before.
    yield f"{name}: free sank by 1 GiB", free_at_first - cupy.cuda.runtime.memGetInfo()[0] >= GIB - 64 * MIB
    yield f"{name}: 1 GiB more than all is refused", bool(out_of_memory(lambda: cupy.empty(total, dtype=cupy.uint8)))
    yield f"{name}: then 1 GiB more is had", not out_of_memory(lambda: cupy.empty(GIB, dtype=cupy.uint8))
    del held


def main():
    total = gpu_bytes()
    checks = {}
    free, seen = cupy.cuda.runtime.memGetInfo()
    checks["memGetInfo says the GPU's size"] = seen == total and free <= total
    checks["the properties say it"] = cupy.cuda.runtime.getDeviceProperties(0)["totalGlobalMem"] == total
    checks["work is done"] = work()
    checks.update(pool_checks("pool", total, free))
    error = out_of_memory(lambda: cupy.empty(total, dtype=cupy.uint8))
    cupy.get_default_memory_pool().free_all_blocks()
    pool = cupy.cuda.MemoryAsyncPool()
    cupy.cuda.set_allocator(pool.malloc)
    checks.update(pool_checks("asynchronous pool", total, cupy.cuda.runtime.memGetInfo()[0]))
    hold()
    report(checks, error)


if __name__ == "__main__":
    main()
