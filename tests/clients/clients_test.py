# SPDX-License-Identifier: Apache-2.0
"""Unmodified PyTorch in a slice: `clients_test.py ALLOCATOR...`, each with that PYTORCH_CUDA_ALLOC_CONF."""

import pathlib
import unittest

from verify.lab import GIB, Lab, Slice
from verify.memory_claims import clients_python

PROGRAM = pathlib.Path(__file__).with_name("torch_memory.py")


class Torch(unittest.TestCase):
    def sees_and_keeps_its_slice(self, allocator):
        python = clients_python()
        self.assertTrue(python, "torch is not here: run scripts/setup.sh --clients")
        quota = 4 * GIB
        with Lab(simulate=True) as lab:
            result = lab.run(
                [python, PROGRAM, quota], Slice("4GiB", compute=50), {"PYTORCH_CUDA_ALLOC_CONF": allocator}, 240
            )
            self.assertTrue(result.succeeded, result.describe())
            for what, holds in result.json["checks"].items():
                with self.subTest(what):
                    self.assertTrue(holds, result.output)

    def test_default_allocator(self):
        self.sees_and_keeps_its_slice("")

    def test_expandable_segments(self):
        self.sees_and_keeps_its_slice("expandable_segments:True")

    def test_cuda_malloc_async(self):
        self.sees_and_keeps_its_slice("backend:cudaMallocAsync")


if __name__ == "__main__":
    unittest.main()
