# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs from elsewhere, each in a slice and without one. Each says itself what it sees and is refused: that
must be the same but for the sizes. What it holds, and leaves, is looked at from outside."""

import json
import pathlib
import re
import subprocess
import time
import unittest

from verify.lab import GIB, ROOT, Lab
from verify.memory_claims import clients_python

PROGRAMS = pathlib.Path(__file__).parent
QUOTA = 4 * GIB
SETTLE_SECONDS = 20
POOL_GROWTH = 32 << 20  # a pool's last growth may stay charged at its most


def devices(lab):
    """What the GPUs themselves say."""
    shown = subprocess.run(
        [lab.program("simgpu"), "show", lab.directory / "node", "--json"], capture_output=True, text=True, check=True
    )
    return json.loads(shown.stdout)["devices"]


def held_by_programs(lab):
    return [sum(use["used_bytes"] for use in device["processes"]) for device in devices(lab)]


def above(lab):
    """By how much the charges of the one slice are above what its programs have of each GPU, which is not nothing."""
    (only,) = lab.slices()["slices"]
    held = held_by_programs(lab)
    assert all(held) and len(held) == len(only["gpus"])
    return [gpu["used_bytes"] - bytes_held for gpu, bytes_held in zip(only["gpus"], held, strict=True)]


def becomes_true(condition, seconds):
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return holds


def without_sizes(text):
    return re.sub(r"[\d.,]+ (?:[KMG]iB|bytes)", "SIZE", text)


class Client(unittest.TestCase):
    def in_slice_as_without(self, program, *arguments, environment=None, gpus=1, limit=100, most_above=0):
        """Runs a program of this folder in both ways at once, on a GPU each. What its slice is charged must settle at what
        it has of the GPU, or at most so many bytes above."""
        with self.node(gpus) as bare_lab, self.node(gpus) as slice_lab:
            total = devices(bare_lab)[0]["total_bytes"]
            bare = self.start(bare_lab, [PROGRAMS / program, total, *arguments], environment)
            in_slice = self.start(slice_lab, [PROGRAMS / program, QUOTA, *arguments], environment, gpus, limit)
            in_slice.wait_for_line("HOLDING", 120)
            settled = becomes_true(lambda: all(0 <= more <= most_above for more in above(slice_lab)), SETTLE_SECONDS)
            self.assertTrue(settled, f"charged above what it has of each GPU, after {SETTLE_SECONDS} s: {above(slice_lab)}")
            results = self.let_end(bare_lab, bare), self.let_end(slice_lab, in_slice)
        for where, result in zip(("without a slice", "in a slice"), results, strict=True):
            for what, holds in result["checks"].items():
                with self.subTest(f"{where}: {what}"):
                    self.assertTrue(holds, result)
        self.assertEqual(*(without_sizes(result["error"]) for result in results))
        self.assertEqual(*(list(result["checks"]) for result in results))

    def node(self, gpus):
        return Lab(simulate=True, node_options=("--count", str(gpus)))

    def start(self, lab, program, environment, gpus=0, limit=100):
        """With GPUs: in a slice of those."""
        python = clients_python()
        self.assertTrue(python, "the clients are not here: run scripts/setup.sh --clients")
        command = [python, *program]
        if gpus:
            chosen = [word for index in range(gpus) for word in ("--gpu", index)]
            terms = ["--memory", "4GiB", "--compute", limit // 2, "--compute-limit", limit, *chosen]
            command = [lab.program("cuslicectl"), "run", *terms, "--", *command]
        return lab.start([str(word) for word in command], None, environment, subprocess.PIPE)

    def let_end(self, lab, tenant):
        """Its result, once what it held is back on the GPU."""
        tenant.stdin.close()
        result = tenant.finish(120)
        self.assertTrue(becomes_true(lambda: not any(device["used_bytes"] for device in devices(lab)), SETTLE_SECONDS))
        return result.json


class Torch(Client):
    def with_allocator(self, allocator, program="torch_memory.py", most_above=0):
        self.in_slice_as_without(
            program, environment={"PYTORCH_CUDA_ALLOC_CONF": allocator}, most_above=most_above
        )

    def test_default_allocator(self):
        self.with_allocator("")

    def test_expandable_segments(self):
        self.with_allocator("expandable_segments:True")

    def test_cuda_malloc_async(self):
        self.with_allocator("backend:cudaMallocAsync", most_above=POOL_GROWTH)

    def test_graphs_with_private_pools(self):
        self.with_allocator("", "torch_graphs.py")

    def test_graphs_that_allocate(self):
        self.with_allocator("backend:cudaMallocAsync", "torch_graphs.py", POOL_GROWTH)

    def test_tensor_of_another_process(self):
        self.in_slice_as_without("torch_ipc.py")

    def test_two_gpus(self):
        self.in_slice_as_without("torch_two_gpus.py", gpus=2)

    # The gate closes between the ranks of a reduction: each is a kernel that waits for the other's.
    def test_two_ranks(self):
        self.in_slice_as_without("torch_ranks.py", 2, environment={"NCCL_SOCKET_IFNAME": "lo"}, gpus=2, limit=40)

    def test_training_loop(self):
        program = [ROOT / "bench" / "torch_training.py", 1, 96, 16]
        with self.node(1) as bare_lab, self.node(1) as slice_lab:
            bare, in_slice = self.start(bare_lab, program, None), self.start(slice_lab, program, None, 1)
            for lab, tenant in ((bare_lab, bare), (slice_lab, in_slice)):
                self.assertGreater(self.let_end(lab, tenant)["steps"], 0)


class Others(Client):
    def test_cupy(self):
        self.in_slice_as_without("cupy_memory.py", most_above=POOL_GROWTH)

    def test_numba(self):
        self.in_slice_as_without("numba_memory.py")

    def test_cuda_python(self):
        self.in_slice_as_without("cuda_python.py")

    def test_libraries(self):
        self.in_slice_as_without("libraries.py", environment={"NCCL_SOCKET_IFNAME": "lo"})


if __name__ == "__main__":
    unittest.main()
