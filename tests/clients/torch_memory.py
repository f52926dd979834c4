# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program that looks at its GPU's memory from every side, and goes past it. It knows nothing of slices: the
size that it should see is its argument. Prints one JSON object with what held, then EXIT-SUCCESS."""

import json
import os
import sys

import pynvml
import torch

GIB = 1 << 30
MIB = 1 << 20


def out_of_memory(make):
    """The error's text, or None if there was none."""
    try:
        make()
    except torch.cuda.OutOfMemoryError as error:
        return str(error)
    return None


def gigabytes(count):
    return torch.empty(count * GIB, dtype=torch.uint8, device="cuda")


def fill():
    """Takes 64 MiB at a time until that is refused; how much it was."""
    taken = []
    while out_of_memory(lambda: taken.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))) is None:
        pass
    return len(taken) * 64 * MIB


def nvml_checks(quota):
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    first = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    own = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid == os.getpid()]
    yield "NVML's total is the quota", first.total == quota and second.total == quota
    yield "NVML's used holds what was taken", GIB <= first.used <= quota and GIB <= second.used <= quota
    yield "NVML lists this process with what it took", len(own) == 1 and GIB <= own[0].usedGpuMemory <= quota
    yield "list_gpu_processes shows it", str(os.getpid()) in torch.cuda.list_gpu_processes()


def work():
    """Some of what programs do all day: kernels, a library, a second stream, a graph."""
    a = torch.zeros(256, 256, device="cuda")
    b = torch.ones(256, 256, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        (a + b).relu_()
        a @ b
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = a @ b + a
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return c.shape == (256, 256)


def main():
    quota = int(sys.argv[1]) if len(sys.argv) > 1 else 4 * GIB
    checks = {}
    free, total = torch.cuda.mem_get_info()
    checks["mem_get_info says the quota"] = total == quota and free <= quota
    checks["get_device_properties says the quota"] = torch.cuda.get_device_properties(0).total_memory == quota
    text = out_of_memory(lambda: gigabytes(5))
    checks["5 GiB raises OutOfMemoryError"] = text is not None
    one = gigabytes(1)
    checks["then 1 GiB is had"] = one.numel() == GIB and one.is_cuda
    # What the driver took for the process is measured meanwhile, and was only estimated before.
    checks["free sank by 1 GiB"] = free - torch.cuda.mem_get_info()[0] >= GIB - 64 * MIB
    checks.update(nvml_checks(quota))
    checks["work is done"] = work()
    taken = fill()
    # The context, libraries and the allocator's own rounding take the rest.
    checks["the slice can be filled, and not more"] = quota - 2 * GIB <= taken <= quota - GIB
    del one
    torch.cuda.empty_cache()
    checks["what was freed can be taken again"] = out_of_memory(lambda: gigabytes(2)) is None
    print(json.dumps({"checks": checks, "error": text, "free": free, "filled": taken}))
    print("EXIT-SUCCESS")


if __name__ == "__main__":
    main()
