#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the built libraries to the law of interpose/README.md: library_test.py LIBRARY EXPORTS_MAP SONAME"""

import re
import subprocess
import sys
import unittest

LIBRARY, EXPORTS_MAP, SONAME = sys.argv[1:4]

NEWEST_GLIBC = (2, 17)  # below the 2.28 that is promised: a rise is a decision
IMPORTS = set(
    # The loader and memory; text and bytes; clocks and errno. No heap, no stdio, nothing of the process' own.
    "dl_iterate_phdr mmap mremap munmap open pread close secure_getenv "
    "memchr memcmp memcpy memmove memset strchr strcmp strlen strncmp strncpy strrchr "
    "clock_gettime nanosleep sched_yield __errno_location".split())


def tool(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def dynamic(tag):
    return re.findall(rf"\({tag}\).*\[(.*)\]", tool("readelf", "-dW", LIBRARY))


def symbols(*options):
    lines = tool("nm", "-D", *options, LIBRARY).splitlines()
    return {line.split()[-1] for line in lines}


class LibraryTest(unittest.TestCase):
    def test_takes_the_place_of_the_real_one_by_its_name(self):
        self.assertEqual(dynamic("SONAME"), [SONAME])

    def test_needs_nothing_but_libc(self):
        self.assertEqual(dynamic("NEEDED"), ["libc.so.6"])

    def test_imports_only_what_is_known_to_be_harmless(self):
        names = {symbol.split("@")[0] for symbol in symbols("--undefined-only")}
        self.assertLessEqual(names, IMPORTS)

    def test_runs_on_an_old_libc(self):
        versions = {symbol.split("@GLIBC_")[1] for symbol in symbols("--undefined-only")}
        newest = max(tuple(map(int, version.split("."))) for version in versions)
        self.assertLessEqual(newest, NEWEST_GLIBC)

    def test_exports_exactly_the_table(self):
        text = open(EXPORTS_MAP).read()
        listed = set(re.findall(r"^\s+(\w+);", text.split("local:")[0], re.M))
        self.assertEqual(symbols("--defined-only"), listed)

    def test_never_exports_the_debuggers_interface(self):
        self.assertFalse([name for name in symbols("--defined-only") if name.startswith("cudbg")])

    def test_runs_no_code_at_load(self):
        sections = tool("readelf", "-SW", LIBRARY)
        for name in (".init_array", ".fini_array", ".preinit_array", ".ctors", ".init", ".fini"):
            self.assertNotRegex(sections, rf"\s\{name}\s")

    def test_is_two_segments_and_what_the_loader_writes_is_one_page(self):
        headers = tool("readelf", "-lW", LIBRARY)
        self.assertEqual(re.findall(r"^\s+LOAD(?:\s+0x\w+){5}\s+([RWE ]+?)\s+0x", headers, re.M), ["R E", "RW"])
        self.assertNotIn("GNU_RELRO", headers)
        sections = re.findall(r"\] (\.\S+)\s+\w+\s+(\w{16})\s+\w+\s+(\w+)", tool("readelf", "-SW", LIBRARY))
        extents = {name: (int(at, 16), int(at, 16) + int(size, 16)) for name, at, size in sections}
        written = [extents[name] for name in (".dynamic", ".got", ".got.plt", ".data") if name in extents]
        self.assertEqual(min(begin for begin, _ in written) // 4096, (max(end for _, end in written) - 1) // 4096)

    def test_needs_no_relocation_but_imports_and_thread_locals(self):
        kinds = set(re.findall(r"R_X86_64_\w+", tool("readelf", "-rW", LIBRARY)))
        self.assertLessEqual(kinds, {"R_X86_64_JUMP_SLOT", "R_X86_64_TPOFF64"})

    def test_fits_the_loaders_spare_room_for_thread_locals(self):
        # glibc keeps 1,664 bytes for libraries that are opened late; others want some of it too.
        sizes = re.findall(r"^\s+TLS(?:\s+0x\w+){3}\s+0x\w+\s+(0x\w+)", tool("readelf", "-lW", LIBRARY), re.M)
        self.assertLessEqual(sum(int(size, 16) for size in sizes), 128)

    def test_stays_loaded_and_has_no_executable_stack(self):
        self.assertIn("NODELETE", tool("readelf", "-dW", LIBRARY))
        self.assertRegex(tool("readelf", "-lW", LIBRARY), r"GNU_STACK.*\sRW\s")

    def test_no_hook_of_dlopen_calls_through_the_plt_to_itself(self):
        # Inside of the library its own exports are reached directly: none of them is among the bound imports.
        bound = set(re.findall(r"JUMP_SLOT\s+\w+\s+(\w+)", tool("readelf", "-rW", LIBRARY)))
        self.assertFalse(bound & symbols("--defined-only"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
