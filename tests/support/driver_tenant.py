#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A process that does with the driver what it is told, a line at a time, and answers each with one line of JSON.

`context`: one more context. `take MIB`, `take_pool MIB`: memory, or from the default pool; the driver's result. `free`: gives
the latest `take` back. `look`: what the driver and NVML say. It knows nothing of slices.
"""

import ctypes
import json
import os
import sys

MIB = 1 << 20
CUDA = ctypes.CDLL("libcuda.so.1")
NVML = ctypes.CDLL("libnvidia-ml.so.1")


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_uint64), ("instances", ctypes.c_uint * 2)]


class Tenant:
    def __init__(self):
        self.taken = []
        context = ctypes.c_void_p()
        self.must(CUDA.cuInit(0))
        self.must(CUDA.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self.must(CUDA.cuCtxSetCurrent(context))
        self.gpu = ctypes.c_void_p()
        self.must(NVML.nvmlInit_v2())
        self.must(NVML.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.gpu)))

    @staticmethod
    def must(result):
        if result != 0:
            raise RuntimeError(f"result {result}")

    def do_context(self):
        current, made = ctypes.c_void_p(), ctypes.c_void_p()
        self.must(CUDA.cuCtxGetCurrent(ctypes.byref(current)))
        result = CUDA.cuCtxCreate_v2(ctypes.byref(made), 0, 0)
        self.must(CUDA.cuCtxSetCurrent(current))
        return result

    def do_take(self, mib):
        pointer = ctypes.c_uint64()
        result = CUDA.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(mib) * MIB))
        if result == 0:
            self.taken.append(pointer)
        return result

    def do_take_pool(self, mib):
        pointer = ctypes.c_uint64()
        result = CUDA.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(int(mib) * MIB), None)
        self.must(CUDA.cuStreamSynchronize(None))
        return result

    def do_free(self):
        return CUDA.cuMemFree_v2(self.taken.pop())

    def do_look(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.must(CUDA.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        memory = Memory()
        self.must(NVML.nvmlDeviceGetMemoryInfo(self.gpu, ctypes.byref(memory)))
        count, list_ = ctypes.c_uint(64), (Process * 64)()
        self.must(NVML.nvmlDeviceGetComputeRunningProcesses_v3(self.gpu, ctypes.byref(count), list_))
        return {
            "free": free.value,
            "total": total.value,
            "nvml": {"free": memory.free, "total": memory.total, "used": memory.used},
            "processes": {str(process.pid): process.used for process in list_[: count.value]},
        }


def main():
    tenant = Tenant()
    print(json.dumps(os.getpid()), flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        print(json.dumps(getattr(tenant, f"do_{command}")(*arguments)), flush=True)


if __name__ == "__main__":
    main()
