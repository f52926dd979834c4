# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs from elsewhere in a slice: each says itself what of the slice it sees and is refused."""

import pathlib
import time
import unittest

from verify.lab import GIB, Lab, Slice
from verify.memory_claims import clients_python

PROGRAMS = pathlib.Path(__file__).parent
QUOTA = 4 * GIB


class InASlice(unittest.TestCase):
    def sees_and_keeps_its_slice(self, program, environment=None):
        python = clients_python()
        self.assertTrue(python, "the clients are not here: run scripts/setup.sh --clients")
        with Lab(simulate=True) as lab:
            result = lab.run([python, PROGRAMS / program, QUOTA], Slice("4GiB", compute=50), environment, 240)
            self.assertTrue(result.succeeded, result.describe())
            for what, holds in result.json["checks"].items():
                with self.subTest(what):
                    self.assertTrue(holds, result.output)
            self.assertEqual(self.left_over(lab), 0)

    def left_over(self, lab):
        """Device memory that is still in use a second after the last process ended."""
        end = time.monotonic() + 1
        while lab.truth().used_bytes and time.monotonic() < end:
            time.sleep(0.02)
        return lab.truth().used_bytes


class Torch(InASlice):
    def with_allocator(self, allocator):
        self.sees_and_keeps_its_slice("torch_memory.py", {"PYTORCH_CUDA_ALLOC_CONF": allocator})

    def test_default_allocator(self):
        self.with_allocator("")

    def test_expandable_segments(self):
        self.with_allocator("expandable_segments:True")

    def test_cuda_malloc_async(self):
        self.with_allocator("backend:cudaMallocAsync")

    def test_tensor_of_another_process(self):
        self.sees_and_keeps_its_slice("torch_ipc.py")


class Others(InASlice):
    def test_cupy(self):
        self.sees_and_keeps_its_slice("cupy_memory.py")

    def test_numba(self):
        self.sees_and_keeps_its_slice("numba_memory.py")


if __name__ == "__main__":
    unittest.main()
