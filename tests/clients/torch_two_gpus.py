# SPDX-License-Identifier: Apache-2.0
"""One PyTorch process with two GPUs: memory of each, copies between them, and a model on both (DataParallel, NCCL)."""

import os

import torch

from client import GIB, MIB, gpu_bytes, hold, report

GPUS = ("cuda:0", "cuda:1")


def free(gpu):
    return torch.cuda.mem_get_info(gpu)[0]


def gigabytes(count, gpu):
    return torch.empty(count * GIB, dtype=torch.uint8, device=gpu)


def refusal(count, gpu):
    try:
        gigabytes(count, gpu)
    except torch.cuda.OutOfMemoryError as error:
        return str(error)
    return ""


def memory_checks(total):
    for gpu in GPUS:
        torch.zeros(1, device=gpu)
    before = [free(gpu) for gpu in GPUS]
    held = gigabytes(2, GPUS[1])
    # What the driver took for the process is measured meanwhile, and was only estimated before.
    yield "memory of one GPU is taken there", before[1] - free(GPUS[1]) >= 2 * GIB - 64 * MIB
    yield "and not of the other", abs(before[0] - free(GPUS[0])) <= 64 * MIB
    of_the_other = gigabytes(2, GPUS[0])
    # Kernels compute nothing on a simulated GPU, but what is copied arrives.
    sent = torch.frombuffer(bytearray(os.urandom(MIB)), dtype=torch.uint8)
    held[:MIB].copy_(sent)
    of_the_other[:MIB].copy_(held[:MIB])
    torch.cuda.synchronize()
    yield "a tensor goes from one to the other", torch.equal(of_the_other[:MIB].cpu(), sent)
    too_much = total // GIB - 1
    for index, gpu in enumerate(GPUS):
        yield f"{gpu} is refused at its own size", f"GPU {index}" in refusal(too_much, gpu)
    hold()
    del held
    torch.cuda.empty_cache()
    yield "what one gave back can be had there", not refusal(too_much - 1, GPUS[1])
    yield "and only there", bool(refusal(too_much - 1, GPUS[0]))
    del of_the_other


def trains():
    model = torch.nn.DataParallel(torch.nn.Linear(64, 64).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.zeros(32, 64, device=GPUS[0])).sum().backward()
        optimizer.step()
    for gpu in GPUS:
        torch.cuda.synchronize(gpu)
    return True


def main():
    total = gpu_bytes()
    sizes = [torch.cuda.mem_get_info(gpu)[1] for gpu in GPUS]
    checks = {"there are two, each with its size": torch.cuda.device_count() == 2 and sizes == [total, total]}
    checks.update(memory_checks(total))
    checks["a model is trained on both"] = trains()
    report(checks)


if __name__ == "__main__":
    main()
