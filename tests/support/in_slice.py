# SPDX-License-Identifier: Apache-2.0
"""Runs programs on a simulated node, in a slice that has no broker.

    in_slice.py --build DIR [--memory-mib N | --no-slice | --without-preload] [--expect TEXT] -- PROGRAM...

As a module: Build finds what was built, and Node is a node of its own for the length of a `with`.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


class Build:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory).resolve()
        names = ("libcuslice-cuda.so", "libcuslice-nvml.so")
        self.libraries = [self.directory / "lib" / name for name in names]
        self.simgpu = self.directory / "bin/simgpu"
        self.tests = self.directory / "bin/tests"

    @property
    def preload(self):
        return " ".join(map(str, self.libraries))


class Node:
    """A simulated node and the slices on it, removed at the end."""

    def __init__(self, build, *simgpu_options):
        self.build = build
        self.options = simgpu_options

    def __enter__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="in_slice.", dir="/dev/shm"))
        return self

    def __exit__(self, *exception):
        shutil.rmtree(self.directory)

    def command(self, *program):
        return [str(self.build.simgpu), *self.options, "--node", str(self.directory / "node"), "--",
                *map(str, program)]

    def make_slice(self, name, memory_mib, *gpus):
        """The directory of a new slice."""
        directory = self.directory / name
        make_slice = self.build.tests / "make_slice"
        subprocess.run(self.command(make_slice, directory, memory_mib, *gpus), check=True)
        return directory

    def environment(self, slices=(), **more):
        variables = {**os.environ, **more}
        variables.pop("CUSLICE_SLICE", None)
        if slices:
            variables["CUSLICE_SLICE"] = ":".join(map(str, slices))
        return variables

    def run(self, *program, slices=(), preload=True, timeout=60, **more):
        """Runs a program to its end; stdout and stderr apart, as text."""
        return subprocess.run(self.command(*self.with_preload(preload, program)), text=True,
                              capture_output=True, env=self.environment(slices, **more), timeout=timeout)

    def start(self, *program, slices=(), preload=True, **more):
        return subprocess.Popen(self.command(*self.with_preload(preload, program)), text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=self.environment(slices, **more))

    def with_preload(self, preload, program):
        # For the program only: simgpu is no tenant.
        return ["/usr/bin/env", f"LD_PRELOAD={self.build.preload}", *program] if preload else program


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--memory-mib", type=int, default=2048)
    parser.add_argument("--no-slice", action="store_true", help="preloaded, but in no slice")
    parser.add_argument("--without-preload", action="store_true")
    parser.add_argument("--expect", default="EXIT-SUCCESS", help="what the output has to end with")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    with Node(Build(options.build)) as node:
        outside = options.no_slice or options.without_preload
        slices = () if outside else (node.make_slice("slice", options.memory_mib),)
        done = node.run(*program, slices=slices, preload=not options.without_preload)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    ended = done.stdout.rstrip().endswith(options.expect)
    sys.exit(0 if done.returncode == 0 and ended else 1)


if __name__ == "__main__":
    main()
