# SPDX-License-Identifier: Apache-2.0
"""A PyTorch process hands a tensor of 1 GiB to another (CUDA IPC), on a GPU whose size is the argument. Prints one JSON
object with what held, then EXIT-SUCCESS."""

import json
import sys

import torch
import torch.multiprocessing

GIB = 1 << 30


def receive(tensors, answers):
    tensor = tensors.get(timeout=60)
    free, total = torch.cuda.mem_get_info()
    answers.put((tensor.numel(), tensor.is_cuda, free, total))
    del tensor


def main():
    total = int(sys.argv[1])
    torch.multiprocessing.set_start_method("spawn")
    tensors, answers = torch.multiprocessing.Queue(), torch.multiprocessing.Queue()
    receiver = torch.multiprocessing.Process(target=receive, args=(tensors, answers))
    receiver.start()
    tensor = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    tensors.put(tensor)
    numel, on_gpu, free, seen = answers.get(timeout=60)
    receiver.join(30)
    checks = {
        "the other process has the tensor": numel == GIB and on_gpu,
        "it sees the GPU's size": seen == total,
        # Two contexts and the tensor once: it is charged to the process that made it.
        "the tensor is counted, once": total - 3 * GIB < free <= total - GIB,
        "it ended well": receiver.exitcode == 0,
    }
    print(json.dumps({"checks": checks}))
    print("EXIT-SUCCESS")


if __name__ == "__main__":
    main()
