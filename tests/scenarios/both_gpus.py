#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`both_gpus.py FIRST SECOND SECONDS`: rounds in which each of two GPUs has a kernel of 1 ms, launched in that order.

A round ends when both are done, as with ranks that wait for each other. Prints the number of rounds, and the longest one.
It knows nothing of slices.
"""

import ctypes
import json
import sys
import time

KERNEL_NS = 1_000_000
# Spins for as many nanoseconds as its argument says; the simulator goes by the name.
IMAGE = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin_for_ns(.param .u64 ns)
{
  .reg .u64 %end, %now;
  .reg .pred %more;
  ld.param.u64 %end, [ns];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
again:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %more, %now, %end;
  @%more bra again;
  ret;
}
"""
CUDA = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(CUDA, name)(*arguments)
    if result != 0:
        raise RuntimeError(f"{name}: {result}")


class Gpu:
    def __init__(self, index):
        self._context, self._function, module = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), index)
        call("cuCtxSetCurrent", self._context)
        call("cuModuleLoadData", ctypes.byref(module), IMAGE)
        call("cuModuleGetFunction", ctypes.byref(self._function), module, b"spin_for_ns")
        self._length = ctypes.c_uint64(KERNEL_NS)
        self._parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self._length))

    def launch(self):
        call("cuCtxSetCurrent", self._context)
        call("cuLaunchKernel", self._function, 1, 1, 1, 1, 1, 1, 0, None, self._parameters, None)

    def finish(self):
        call("cuCtxSetCurrent", self._context)
        call("cuCtxSynchronize")


def main():
    call("cuInit", 0)
    gpus = [Gpu(int(index)) for index in sys.argv[1:3]]
    end = time.monotonic() + float(sys.argv[3])
    rounds, longest = 0, 0
    begin = time.monotonic()
    while begin < end:
        for gpu in gpus:
            gpu.launch()
        for gpu in gpus:
            gpu.finish()
        now = time.monotonic()
        rounds, longest, begin = rounds + 1, max(longest, now - begin), now
    print(json.dumps({"rounds": rounds, "longest_seconds": longest}))
    print("EXIT-SUCCESS")


if __name__ == "__main__":
    main()
