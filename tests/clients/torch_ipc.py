# SPDX-License-Identifier: Apache-2.0
"""A PyTorch process hands a tensor of 1 GiB to another (CUDA IPC)."""

import torch
import torch.multiprocessing

from client import GIB, gpu_bytes, hold, report


def receive(tensors, answers, may_end):
    tensor = tensors.get(timeout=60)
    free, total = torch.cuda.mem_get_info()
    answers.put((tensor.numel(), tensor.is_cuda, free, total))
    may_end.wait(120)
    del tensor


def main():
    total = gpu_bytes()
    torch.multiprocessing.set_start_method("spawn")
    tensors, answers = torch.multiprocessing.Queue(), torch.multiprocessing.Queue()
    may_end = torch.multiprocessing.Event()
    receiver = torch.multiprocessing.Process(target=receive, args=(tensors, answers, may_end))
    receiver.start()
    tensor = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    tensors.put(tensor)
    numel, on_gpu, free, seen = answers.get(timeout=60)
    hold()
    may_end.set()
    receiver.join(30)
    report(
        {
            "the other process has the tensor": numel == GIB and on_gpu,
            "it sees the GPU's size": seen == total,
            # Two contexts and the tensor once: it is charged to the process that made it.
            "the tensor is counted, once": total - 3 * GIB < free <= total - GIB,
            "it ended well": receiver.exitcode == 0,
        }
    )


if __name__ == "__main__":
    main()
