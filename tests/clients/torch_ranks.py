# SPDX-License-Identifier: Apache-2.0
"""All-reduces of NCCL between processes, one for each GPU; how many is the second argument."""

import os
import sys
import tempfile

import torch
import torch.distributed
import torch.multiprocessing

from client import GIB, MIB, gpu_bytes, hold, report

REDUCTIONS = 100


def rank_checks():
    total = gpu_bytes()
    tensor = torch.ones(GIB // 4, device="cuda")
    for _ in range(REDUCTIONS):
        torch.distributed.all_reduce(tensor)
        torch.relu(tensor)
    torch.cuda.synchronize()
    free, seen = torch.cuda.mem_get_info()
    yield "it sees the GPU's size", seen == total
    yield "what it and NCCL took is counted", 2 * GIB <= total - free + 64 * MIB
    try:
        torch.empty(total - GIB, dtype=torch.uint8, device="cuda")
        yield "it is refused at the end", False
    except torch.cuda.OutOfMemoryError:
        yield "it is refused at the end", True
    torch.distributed.all_reduce(tensor)
    torch.cuda.synchronize()


def be_rank(rank, ranks, meeting, answers, may_end):
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank)
    )
    answers.put({f"rank {rank}: {what}": holds for what, holds in rank_checks()})
    may_end.wait(120)
    torch.distributed.destroy_process_group()


def main():
    ranks = int(sys.argv[2])
    context = torch.multiprocessing.get_context("spawn")
    answers, may_end = context.Queue(), context.Event()
    with tempfile.TemporaryDirectory() as directory:
        meeting = os.path.join(directory, "meeting")
        running = torch.multiprocessing.spawn(
            be_rank, (ranks, meeting, answers, may_end), nprocs=ranks, join=False, start_method="spawn"
        )
        checks = {}
        for _ in range(ranks):
            checks.update(answers.get(timeout=100))
        hold()
        may_end.set()
        while not running.join():
            pass
    report(dict(sorted(checks.items())))


if __name__ == "__main__":
    main()
