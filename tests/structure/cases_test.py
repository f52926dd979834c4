#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every test that tests/CASES.md names exists, and every case has one or a reason: cases_test.py BUILD_DIR"""

import pathlib
import re
import subprocess
import sys
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
BUILD = sys.argv.pop(1)
GTEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)


def known_to_ctest():
    listed = subprocess.run(["ctest", "--test-dir", BUILD, "-N"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^ *Test +#\d+: (\S+)", listed, re.MULTILINE))


def cases_in(program):
    """Of a program that is one test for CTest."""
    for path in TESTS.glob(f"*/{program}.*"):
        text = path.read_text()
        if path.suffix == ".py":
            yield from re.findall(r"^    def test_(\w+)", text, re.MULTILINE)
        elif path.suffix == ".cpp":
            yield from (case for _, case in GTEST.findall(text))


class CasesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        rows = re.findall(r"^\| (B\d+) (.*)\|$", (TESTS / "CASES.md").read_text(), re.MULTILINE)
        cls.rows = [(case, [cell.strip() for cell in rest.split("|")]) for case, rest in rows]
        cls.ctest = known_to_ctest()

    def exists(self, name):
        program, _, case = name.partition(".")
        return name in self.ctest or (program in self.ctest and case in cases_in(program))

    def test_every_test_that_is_named_exists(self):
        named = [(case, name) for case, cells in self.rows for name in re.findall(r"`([^`]+)`", cells[2])]
        self.assertGreater(len(named), 100)
        self.assertEqual([each for each in named if not self.exists(each[1])], [])

    def test_every_case_has_a_test_or_a_reason(self):
        self.assertEqual([case for case, cells in self.rows
                          if "`" not in cells[2] and "no test: " not in cells[1] + cells[2]], [])
        self.assertEqual(len({case for case, _ in self.rows}), len(self.rows))


if __name__ == "__main__":
    unittest.main()
