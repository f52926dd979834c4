#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of every launch hook when the gate is open and the thread's last stream is used again.

    fast_path_test.py LIBRARY FUNCTIONS_INC

The path is followed through the disassembly: the first comparison with the thread's words is taken as equal. It has
to end in a jump through the function's forward slot, without touching the stack on the way.
"""

import pathlib
import re
import subprocess
import sys
import unittest

BUDGET = 12
LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")


def launch_functions(path):
    table = pathlib.Path(path).read_text(encoding="ascii")
    return re.findall(r"DRIVER_FUNCTION\(\d+, (\w+), \w+, Launch\)", table)


def disassemble(library, name):
    text = subprocess.run(
        ["objdump", "--disassemble=" + name, "--no-show-raw-insn", library],
        capture_output=True, text=True, check=True).stdout
    return {int(m[1], 16): (m[2], m[3]) for m in map(LINE.match, text.splitlines()) if m}


def hit_path(code):
    """The instructions executed, as (mnemonic, operands)."""
    addresses = sorted(code)
    following = dict(zip(addresses, addresses[1:]))
    at, path, compared = addresses[0], [], False
    while True:
        mnemonic, operands = code[at]
        path.append((mnemonic, operands))
        if mnemonic in ("jmp", "ret", "call"):
            return path
        if mnemonic == "je" and compared:
            at = int(operands.split()[0], 16)
        elif mnemonic == "jne" and compared:
            at = following[at]
        elif mnemonic in ("je", "jne"):  # where the arguments name no launch at all, or some graph allocates
            at = following[at]
        elif mnemonic.startswith("j"):
            raise AssertionError(f"an unknown branch: {mnemonic} {operands}")
        else:
            compared = compared or (mnemonic == "cmp" and "%fs:" in operands)
            at = following[at]


class FastPath(unittest.TestCase):
    library = functions = None

    def test_every_launch_is_within_the_budget(self):
        names = launch_functions(self.functions)
        self.assertGreater(len(names), 40)
        for name in names:
            with self.subTest(name):
                path = hit_path(disassemble(self.library, name))
                self.assertEqual(path[-1][0], "jmp")
                self.assertTrue(path[-1][1].startswith("*"), path[-1])
                for mnemonic, operands in path:
                    self.assertNotIn(mnemonic, ("push", "pop", "call"), operands)
                self.assertLessEqual(len([i for i in path if i[0] != "endbr64"]), BUDGET, path)


if __name__ == "__main__":
    FastPath.library, FastPath.functions = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
