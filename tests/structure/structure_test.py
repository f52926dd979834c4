#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The folders include only what lies below them, and every source file says its licence."""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Folder -> folders of ours whose headers it may include, itself apart.
MAY_INCLUDE = {
    "shm": set(),
    "limiter": {"shm"},
    "interpose": {"limiter", "shm"},
    "broker": {"limiter", "shm"},
    "ctl": {"broker", "limiter", "shm"},
    "sim": set(),
    "cuda_samples": set(),
}
OURS = set(MAY_INCLUDE) | {"tests", "bench"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z_]+)/', re.MULTILINE)
SOURCES = (".cpp", ".h", ".cu", ".S", ".py", ".sh", ".cmake", ".proto", ".go")


def tracked_files():
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


class StructureTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = tracked_files()
        assert len(cls.files) > 20, "git ls-files found next to nothing: is this a checkout?"

    def test_folders_include_only_what_lies_below_them(self):
        wrong = []
        for path in self.files:
            folder = path.relative_to(ROOT).parts[0]
            if folder not in MAY_INCLUDE or path.suffix not in (".cpp", ".h", ".cu"):
                continue
            for included in INCLUDE.findall(path.read_text()):
                if included in OURS and included != folder and included not in MAY_INCLUDE[folder]:
                    wrong.append(f"{path.relative_to(ROOT)} includes {included}/")
        self.assertEqual(wrong, [])

    def test_interpose_includes_nothing_that_needs_a_cpp_library(self):
        heavy = re.compile(r"#\s*include\s+<((string|vector|map|mutex|thread|memory|functional|iostream)>|boost/)")
        wrong = [
            str(path.relative_to(ROOT))
            for path in self.files
            if path.relative_to(ROOT).parts[0] == "interpose"
            and path.suffix in (".cpp", ".h")
            and heavy.search(path.read_text())
        ]
        self.assertEqual(wrong, [])

    def test_every_source_file_says_its_licence(self):
        wrong = [
            str(path.relative_to(ROOT))
            for path in self.files
            if (path.suffix in SOURCES or path.name == "CMakeLists.txt")
            and "SPDX-License-Identifier: Apache-2.0" not in path.read_text()[:300]
        ]
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
