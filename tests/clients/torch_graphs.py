# SPDX-License-Identifier: Apache-2.0
"""PyTorch's CUDA graphs, which keep the memory that they use: in private pools of its own allocator, or, with
cudaMallocAsync, as nodes of the graph."""

import torch

from client import GIB, MIB, gpu_bytes, hold, report


def used():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def captured(make, pool):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = make()
    return graph, result


def bytes_of(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def refused(make):
    try:
        make()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return True
    return False


def graph_checks(total):
    """Two graphs of a pool, of which the first holds 1 GiB."""
    x = torch.zeros(1 << 20, device="cuda")
    torch.relu(x * 2)
    before = used()
    pool = torch.cuda.graph_pool_handle()
    first, y = captured(lambda: bytes_of(GIB).fill_(1), pool)
    second, z = captured(lambda: torch.relu(x * 2) + 1, pool)
    for _ in range(3):
        first.replay()
        second.replay()
    # What the driver took for the process is measured meanwhile, and was only estimated before.
    yield "a graph's memory is counted", GIB - 64 * MIB <= used() - before <= GIB + 256 * MIB
    yield "and is not had twice", refused(lambda: bytes_of(total - GIB))
    yield "its tensors stay", y.numel() == GIB and z.shape == x.shape
    hold()
    del first, second, y, z
    torch.cuda.empty_cache()
    yield "it is back when the graphs are gone", not refused(lambda: bytes_of(total - 2 * GIB))


def capture_past_the_end(total):
    """A capture that runs out of memory fails, and the next one works."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            bytes_of(total + GIB)
        return False
    except RuntimeError:
        pass
    again, result = captured(lambda: bytes_of(MIB), torch.cuda.graph_pool_handle())
    again.replay()
    torch.cuda.synchronize()
    return result.numel() == MIB


def pool_checks():
    """A pool that the program makes itself."""
    before = used()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = bytes_of(GIB)
    yield "a pool's memory is counted", used() - before >= GIB
    del held, pool
    torch.cuda.empty_cache()
    yield "and is back when it is gone", used() - before < 64 * MIB


def main():
    total = gpu_bytes()
    checks = dict(graph_checks(total))
    if torch.cuda.get_allocator_backend() == "native":
        checks["a capture past the end fails, the next works"] = capture_past_the_end(total)
        checks.update(pool_checks())
    report(checks)


if __name__ == "__main__":
    main()
