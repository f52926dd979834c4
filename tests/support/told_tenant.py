# SPDX-License-Identifier: Apache-2.0
"""driver_tenant.py from outside: a process in a slice of a Lab that does what it is told."""

import json
import pathlib
import subprocess
import time

TENANT = pathlib.Path(__file__).resolve().parent / "driver_tenant.py"


class DriverTenant:
    """A process in a slice that does what it is told."""

    def __init__(self, held, environment=None):
        self._tenant = held.start(["python3", TENANT], environment, stdin=subprocess.PIPE)
        self._answers = 0
        self.pid = self._answer()

    def do(self, *command):
        self._tenant.stdin.write(" ".join(map(str, command)) + "\n")
        self._tenant.stdin.flush()
        return self._answer()

    def end(self):
        """What it has written to stderr."""
        self._tenant.stdin.close()
        return self._tenant.wait(20).errors

    def _answer(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            lines = self._tenant.output().splitlines(keepends=True)
            if len(lines) > self._answers and lines[self._answers].endswith("\n"):
                self._answers += 1
                return json.loads(lines[self._answers - 1])
            if not self._tenant.running():
                break
            time.sleep(0.002)
        raise AssertionError(self._tenant.wait(1).describe())
