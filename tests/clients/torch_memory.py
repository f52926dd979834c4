# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program that looks at its GPU's memory from every side, and goes past it."""

import os
import re

import pynvml
import torch

from client import GIB, MIB, gpu_bytes, hold, report

UNITS = {"MiB": MIB, "GiB": GIB}


def out_of_memory(make):
    """The error's text, or None if there was none."""
    try:
        make()
    except torch.cuda.OutOfMemoryError as error:
        return str(error)
    return None


def gigabytes(count):
    return torch.empty(count * GIB, dtype=torch.uint8, device="cuda")


def fill(chunk):
    """Takes that many bytes at a time until that is refused; how much it was."""
    taken = []
    while out_of_memory(lambda: taken.append(torch.empty(chunk, dtype=torch.uint8, device="cuda"))) is None:
        pass
    return len(taken) * chunk


def says_what_is(text, free, total):
    """Whether an OutOfMemoryError has the GPU's size and what of it is free, as they are. Each allocator has its words."""
    said_free = re.search(r"(?:of which|Free \(according to CUDA\):) +([\d.]+) ([MG]iB)", text)
    said_total = re.search(r"(?:total capacity of|Device limit *:) +([\d.]+) GiB", text)
    if not said_free or not said_total:
        return False
    near_free = abs(float(said_free[1]) * UNITS[said_free[2]] - free) <= 64 * MIB
    return near_free and said_total[1] == f"{total / GIB:.2f}"


def nvml_checks(total):
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    first = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    free = torch.cuda.mem_get_info()[0]
    own = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid == os.getpid()]
    # Of a whole GPU NVML counts what the driver keeps for itself too, which CUDA leaves out.
    yield "NVML's total is the GPU's size", all(total <= each.total < total + GIB for each in (first, second))
    yield "NVML's used holds what was taken", all(GIB <= each.used <= each.total for each in (first, second))
    yield "mem_get_info agrees with it", all(abs(each.free - free) <= 64 * MIB for each in (first, second))
    yield "NVML lists this process with what it took", len(own) == 1 and GIB <= own[0].usedGpuMemory <= total
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
    total = gpu_bytes()
    checks = {}
    free, seen = torch.cuda.mem_get_info()
    checks["mem_get_info says the GPU's size"] = seen == total and free <= total
    checks["get_device_properties says it"] = torch.cuda.get_device_properties(0).total_memory == total
    text = out_of_memory(lambda: gigabytes(total // GIB + 1))
    checks["1 GiB more than that raises OutOfMemoryError"] = text is not None
    checks["its text says what is free, and the size"] = says_what_is(text or "", torch.cuda.mem_get_info()[0], total)
    one = gigabytes(1)
    checks["then 1 GiB is had"] = one.numel() == GIB and one.is_cuda
    # What the driver took for the process is measured meanwhile, and was only estimated before.
    checks["free sank by 1 GiB"] = free - torch.cuda.mem_get_info()[0] >= GIB - 64 * MIB
    checks.update(nvml_checks(total))
    checks["work is done"] = work()
    taken = fill(total // 64)
    # The context, libraries and the allocator's own rounding take the rest.
    checks["it can be filled, and not more"] = total - total // 32 - 2 * GIB <= taken <= total - GIB
    hold()
    del one
    torch.cuda.empty_cache()
    checks["what was freed can be taken again"] = out_of_memory(lambda: gigabytes(2)) is None
    report(checks, text)


if __name__ == "__main__":
    main()
