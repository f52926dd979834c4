#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The simulated driver of each version as `cuslicectl audit` sees it: audit_each_driver_test.py BUILD_DIR"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

BUILD = pathlib.Path(sys.argv.pop(1))
LOOKUP = BUILD / "generated" / "interpose" / "lookup.inc"


def versions_of_functions():
    """By function, the driver version that brought it."""
    rows = re.findall(r"^DRIVER_LOOKUP\(\d+, (\d+), .*\)  // (\w+)$", LOOKUP.read_text(), re.M)
    return {name: int(version) for version, name in rows}


def audit(driver):
    run = subprocess.run([BUILD / "bin/simgpu", "--driver", driver, "--", BUILD / "bin/cuslicectl", "audit", "--json",
                          "--strict"], capture_output=True, text=True, timeout=60)
    return run.returncode, json.loads(run.stdout)


class AuditOfEachDriver(unittest.TestCase):
    def test_all_is_known_and_what_is_newer_is_counted_as_absent(self):
        since = versions_of_functions()
        exported = []
        for driver, version in (("11.8", 11080), ("12.0", 12000), ("12.4", 12040), ("12.9", 12090), ("13.0", 13000),
                                ("13.5", 13050)):
            with self.subTest(driver=driver):
                status, seen = audit(driver)
                self.assertEqual(status, 0)
                self.assertEqual(seen["counts"]["UNKNOWN"], 0)
                newer = sorted(name for name, first in since.items() if first > version)
                self.assertEqual(seen["absent"], newer)
                self.assertEqual(seen["other_exports"], 0)
                exported.append(len(seen["functions"]))
                print(f"driver {driver}: {exported[-1]} functions, {len(newer)} of the table's are newer")
        # Each of these versions brought some.
        self.assertEqual(exported, sorted(set(exported)))


if __name__ == "__main__":
    unittest.main()
