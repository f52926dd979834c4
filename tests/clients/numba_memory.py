# SPDX-License-Identifier: Apache-2.0
"""Numba, with a kernel that it compiles, at the edge of its GPU's memory."""

import warnings

import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

from client import GIB, MIB, gpu_bytes, hold, report


@cuda.jit
def add_one(cells):
    i = cuda.grid(1)
    if i < cells.size:
        cells[i] += 1


def out_of_memory(make):
    """The error's text, or nothing if there was none."""
    try:
        make()
    except CudaAPIError as error:
        return str(error)
    return ""


def main():
    total = gpu_bytes()
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
    error = out_of_memory(lambda: cuda.device_array(total, numpy.uint8))
    checks["1 GiB more than all is refused"] = "OUT_OF_MEMORY" in error
    checks["then 1 GiB more is had"] = not out_of_memory(lambda: cuda.device_array(GIB, numpy.uint8))
    hold()
    del held
    report(checks, error)


if __name__ == "__main__":
    main()
