# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's runtime libraries of each generation, in a slice, on drivers of each: what NVIDIA supports keeps to the slice,
what it does not is refused as without us."""

import os
import pathlib
import unittest

from verify.lab import GIB, Lab, Slice

PROGRAM = pathlib.Path(__file__).with_name("runtime_memory.py")
CACHE = pathlib.Path(os.environ.get("CUSLICE_CACHE", pathlib.Path.home() / ".cache/cuslice"))
INSUFFICIENT_DRIVER = 35
DRIVERS = ("11.8", "12.0", "12.4", "12.9", "13.0", "13.5")


def major(version):
    return int(version.split(".")[0])


class Runtimes(unittest.TestCase):
    def on_each_driver(self, version):
        libraries = list((CACHE / f"cuda-{version}" / "lib64").glob("libcudart.so.*"))
        self.assertTrue(libraries, f"CUDA {version}'s runtime is not here: run scripts/setup.sh")
        for driver in DRIVERS:
            with self.subTest(driver=driver), Lab(simulate=True, node_options=("--driver", driver)) as lab:
                quota = 2 * GIB
                result = lab.run(["python3", PROGRAM, libraries[0], quota], Slice("2GiB"), timeout=30)
                self.assertTrue(result.succeeded, result.describe())
                if major(driver) < major(version):
                    self.assertEqual(result.json, {"error": INSUFFICIENT_DRIVER})
                else:
                    for what, holds in result.json["checks"].items():
                        self.assertTrue(holds, f"{what}\n{result.describe()}")

    def test_11_8(self):
        self.on_each_driver("11.8")

    def test_12_9(self):
        self.on_each_driver("12.9")

    def test_13_0(self):
        self.on_each_driver("13.0")


if __name__ == "__main__":
    unittest.main()
