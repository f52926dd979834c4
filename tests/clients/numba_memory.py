# SPDX-License-Identifier: Apache-2.0
"""Numba, with a kernel that it compiles, at the edge of its GPU's memory, whose size is the argument. Prints one JSON
object with what held, then EXIT-SUCCESS."""

import json
import sys
import warnings

import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

GIB = 1 << 30
MIB = 1 << 20


@cuda.jit
def add_one(cells):
    i = cuda.grid(1)
    if i < cells.size:
        cells[i] += 1


def out_of_memory(make):
    try:
        make()
    except CudaAPIError as error:
        return "OUT_OF_MEMORY" in str(error)
    return False


def main():
    total = int(sys.argv[1])
    warnings.simplefilter("ignore")  # of small grids
    checks = {}
    before = cuda.current_context().get_memory_info()
    checks["get_memory_info says the GPU's size"] = before.total == total and before.free <= total
    cells = cuda.to_device(numpy.zeros(1000, numpy.float32))
    add_one[8, 128](cells)
    cuda.synchronize()
    held = cuda.device_array(GIB, numpy.uint8)
    # What the driver took for the process is measured meanwhile, and was only estimated before.
    checks["free sank by 1 GiB"] = before.free - cuda.current_context().get_memory_info().free >= GIB - 64 * MIB
    checks["5 GiB is refused"] = out_of_memory(lambda: cuda.device_array(5 * GIB, numpy.uint8))
    checks["then 1 GiB more is had"] = not out_of_memory(lambda: cuda.device_array(GIB, numpy.uint8))
    del held
    print(json.dumps({"checks": checks}))
    print("EXIT-SUCCESS")


if __name__ == "__main__":
    main()
