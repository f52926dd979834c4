# SPDX-License-Identifier: Apache-2.0
"""How the programs here tell clients_test.py what they saw. They know nothing of slices: the size that the GPU should
have is their first argument."""

import json
import sys

GIB = 1 << 30
MIB = 1 << 20


def gpu_bytes():
    return int(sys.argv[1])


def hold():
    """Waits until whoever started this has looked at the GPU from outside."""
    print("HOLDING", flush=True)
    sys.stdin.readline()


def report(checks, error=""):
    """What held, by name; and a text that should differ in its sizes only, wherever this runs."""
    print(json.dumps({"checks": checks, "error": error}))
    print("EXIT-SUCCESS")
