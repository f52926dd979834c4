# SPDX-License-Identifier: Apache-2.0
"""CuPy at the edge of its GPU's memory, whose size is the argument: its pool, its asynchronous pool, and kernels that it
compiles itself. Prints one JSON object with what held, then EXIT-SUCCESS."""

import json
import sys

import cupy

GIB = 1 << 30
MIB = 1 << 20


def out_of_memory(make):
    try:
        make()
    except cupy.cuda.memory.OutOfMemoryError:
        return True
    return False


def work():
    """An own kernel, one of NVRTC's, and two libraries."""
    a = cupy.arange(1000, dtype=cupy.float32) * 2
    add = cupy.RawKernel('extern "C" __global__ void add(float* x) { x[threadIdx.x] += 1; }', "add")
    add((1,), (32,), (a,))
    product = cupy.zeros((64, 64)) @ cupy.zeros((64, 64))
    spectrum = cupy.fft.fft(cupy.zeros(64))
    cupy.cuda.Device().synchronize()
    return product.shape == (64, 64) and spectrum.shape == (64,)


def pool_checks(name, free_at_first):
    held = cupy.empty(GIB, dtype=cupy.uint8)
    # What the driver took for the process is measured meanwhile, and was only estimated before.
    yield f"{name}: free sank by 1 GiB", free_at_first - cupy.cuda.runtime.memGetInfo()[0] >= GIB - 64 * MIB
    yield f"{name}: 5 GiB is refused", out_of_memory(lambda: cupy.empty(5 * GIB, dtype=cupy.uint8))
    yield f"{name}: then 1 GiB more is had", not out_of_memory(lambda: cupy.empty(GIB, dtype=cupy.uint8))
    del held


def main():
    total = int(sys.argv[1])
    checks = {}
    free, seen = cupy.cuda.runtime.memGetInfo()
    checks["memGetInfo says the GPU's size"] = seen == total and free <= total
    checks["the properties say it"] = cupy.cuda.runtime.getDeviceProperties(0)["totalGlobalMem"] == total
    checks["work is done"] = work()
    checks.update(pool_checks("pool", free))
    cupy.get_default_memory_pool().free_all_blocks()
    pool = cupy.cuda.MemoryAsyncPool()
    cupy.cuda.set_allocator(pool.malloc)
    checks.update(pool_checks("asynchronous pool", cupy.cuda.runtime.memGetInfo()[0]))
    print(json.dumps({"checks": checks}))
    print("EXIT-SUCCESS")


if __name__ == "__main__":
    main()
