# SPDX-License-Identifier: Apache-2.0
"""One of NVIDIA's runtime libraries at the edge of its GPU's memory: `runtime_memory.py LIBCUDART TOTAL_BYTES`. Prints
one JSON object, {"error": N} if the runtime refuses this driver and else {"checks": ...}, then EXIT-SUCCESS."""

import ctypes
import json
import sys

GIB = 1 << 30
OUT_OF_MEMORY = 2


def checks(runtime, total):
    free, seen, memory = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
    error = runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(seen))
    if error:
        return {"error": error}
    held = {"cudaMemGetInfo says the GPU's size": seen.value == total and free.value <= total}
    held["more than that is refused"] = (
        runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(total + GIB)) == OUT_OF_MEMORY
    )
    taken = []
    while not (error := runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(GIB // 4))):
        taken.append(memory.value)
    held["at the end it is out of memory"] = error == OUT_OF_MEMORY
    held["nearly all can be had"] = total - GIB <= len(taken) * (GIB // 4) < total
    held["a piece that is freed can be had again"] = not (
        runtime.cudaFree(ctypes.c_void_p(taken.pop()))
        or runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(GIB // 4))
    )
    return {"checks": held}


def main():
    print(json.dumps(checks(ctypes.CDLL(sys.argv[1]), int(sys.argv[2]))))
    print("EXIT-SUCCESS")


if __name__ == "__main__":
    main()
