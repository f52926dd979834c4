#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whatever way a program comes to the driver, it finds our hooks, and else what it would have found without
us: ways_in_test.py BUILD_DIR"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import in_slice  # noqa: E402

BUILD = in_slice.Build(sys.argv[1])
WAYS_IN = BUILD.tests / "ways_in"
NEEDS_DRIVER = BUILD.tests / "needs_driver"
DRIVER = BUILD.directory / "lib/sim/libcuda.so.1"

HOOKED = ("cuInit", "cuMemAlloc", "cuCtxCreate", "cuLaunchKernel", "cuGetProcAddress", "cuMemFreeAsync")


def without_owner(text):
    return re.sub(r" of (ours|real)$", "", text, flags=re.M)


class WaysInTest(unittest.TestCase):
    def setUp(self):
        self.node = in_slice.Node(BUILD)
        self.node.__enter__()
        self.addCleanup(self.node.__exit__)

    def both(self, *arguments, program=WAYS_IN):
        """The output with the preload, which has to be that without, but for whose functions they are."""
        plain = self.node.run(program, *arguments, preload=False)
        ours = self.node.run(program, *arguments)
        self.assertEqual(without_owner(plain.stdout), without_owner(ours.stdout))
        self.assertEqual(plain.returncode, ours.returncode)
        self.assertNotIn("of ours", plain.stdout)
        self.assertEqual(ours.stderr, plain.stderr)
        return ours.stdout

    def test_dlopen_by_soname(self):
        output = self.both("dlopen", "libcuda.so.1")
        for name in ("cuInit", "cuMemAlloc_v2", "cuMemcpy", "cuDriverGetVersion"):
            self.assertIn(f"{name}: {name} of ours", output)
        self.assertIn("cuNoSuchFunction: nothing of nobody", output)
        self.assertIn("cuCtxCreate_v4: cuCtxCreate_v4 of ours", output)

    def test_dlopen_by_other_names_and_paths(self):
        directory = self.node.directory / "other"
        directory.mkdir()
        for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.550.54.14"):
            (directory / name).symlink_to(DRIVER)
        for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.550.54.14"):
            self.assertIn("cuInit: cuInit of ours", self.both("dlopen", directory / name))

    def test_dlopen_of_a_driver_that_is_elsewhere_only(self):
        # As a program that brings its own: no search path leads there.
        copy = self.node.directory / "libcuda.so.1"
        shutil.copy(DRIVER, copy)
        output = self.outside("dlopen", copy, LD_LIBRARY_PATH=str(DRIVER.parent / "nothing"))
        self.assertIn(f"{copy}: opens", output)
        self.assertIn("cuInit: cuInit of ours", output)

    def test_dlopen_with_noload(self):
        output = self.both("noload")
        self.assertIn("before: 0", output)
        self.assertIn("cuInit before: 0", output)
        self.assertIn("the same after: 1", output)

    def test_dlmopen_into_a_namespace_of_its_own(self):
        output = self.both("namespace")
        self.assertIn("cuInit: cuInit of ours", output)

    def test_the_loaders_functions_from_the_c_library(self):
        self.assertIn("cuInit: cuInit of ours", self.both("c_library"))

    def test_needed_by_the_program(self):
        self.assertIn("cuInit 0, cuDeviceGetCount 0, 1 devices", self.both(program=NEEDS_DRIVER))

    def test_get_proc_address_gives_the_hook_of_the_very_version_and_stream_mode(self):
        output = self.both("get_proc_address")
        for line in output.splitlines():
            asked = line.split(":")[0].split()[-3:]
            if line.endswith("of ours"):
                self.assertIn(asked[0], HOOKED)
            if line.endswith("of real"):
                self.assertNotIn(asked[0], HOOKED)
        self.assertIn("cuMemAlloc 2000 0: cuMemAlloc of ours", output)
        self.assertIn("cuMemAlloc 3020 0: cuMemAlloc_v2 of ours", output)
        self.assertIn("cuCtxCreate 13000 0: cuCtxCreate_v4 of ours", output)
        self.assertIn("cuLaunchKernel 12000 2: cuLaunchKernel_ptsz of ours", output)
        self.assertIn("cuGetProcAddress 12000 0: cuGetProcAddress_v2 of ours", output)

    def test_older_driver_lacks_what_it_lacks(self):
        self.node.options = ("--driver", "12.4")
        output = self.both("get_proc_address")
        self.assertNotIn("cuCtxCreate_v4", output)
        output = self.both("dlopen", "libcuda.so.1")
        self.assertIn("cuCtxCreate_v4: nothing of nobody", output)
        self.assertIn("cuMemcpyBatchAsync_v2: nothing of nobody", output)

    def test_functions_newer_than_the_table_are_the_drivers(self):
        path = str(BUILD.directory / "lib/newer_driver")
        for preload in (False, True):
            output = self.outside(program=BUILD.tests / "needs_newer_driver", preload=preload,
                                  LD_LIBRARY_PATH=path)
            self.assertEqual(output, "cuInit 0\nlinked: 2\nlooked up: 3\n")

    # --- Where there is no driver

    def outside(self, *arguments, program=WAYS_IN, preload=True, **variables):
        environment = {**os.environ, **variables}
        if preload:
            environment["LD_PRELOAD"] = BUILD.preload
        command = [str(program), *map(str, arguments)]
        run = subprocess.run(command, env=environment, text=True, capture_output=True)
        self.assertEqual(run.stderr, "")
        return run.stdout

    @unittest.skipIf(shutil.which("nvidia-smi"), "this machine has a real driver")
    def test_opening_it_fails_in_the_same_words_where_there_is_none(self):
        for file in ("libcuda.so.1", "libcuda.so", "/no/such/libcuda.so.1", "libcuda.so.550.54.14",
                     "libnvidia-ml.so.1"):
            plain = self.outside("dlopen", file, preload=False)
            self.assertIn("fails", plain)
            self.assertEqual(self.outside("dlopen", file), plain)
        self.assertEqual(self.outside("noload"), self.outside("noload", preload=False))

    @unittest.skipIf(shutil.which("nvidia-smi"), "this machine has a real driver")
    def test_a_program_that_needs_it_finds_no_device_where_there_is_none(self):
        self.assertIn("cuInit 100, cuDeviceGetCount 100", self.outside(program=NEEDS_DRIVER))

    def test_a_file_that_is_no_library_fails_in_the_same_words(self):
        broken = self.node.directory / "libcuda.so.1"
        broken.write_text("not a library\n")
        plain = self.outside("dlopen", broken, preload=False)
        self.assertEqual(self.outside("dlopen", broken), plain)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
