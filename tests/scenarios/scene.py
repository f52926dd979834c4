# SPDX-License-Identifier: Apache-2.0
"""What the scenarios have in common: a simulated node with a broker of its own, and tenants that tell when they ran."""

import mmap
import os
import pathlib
import signal
import struct
import time
import unittest

from verify.contest import wait_until_busy
from verify.guest_claims import start_broker
from verify.lab import Lab, Slice
from verify.timelines import Timeline

MS = 1_000_000
QUANTUM_NS = 5 * MS
# A turn that has not drained four quanta after its end keeps nobody waiting any longer (rule R1).
RECLAIMED_NS = 5 * QUANTUM_NS
# What a busy machine without a GPU may keep a thread from running.
NOISE_NS = 40 * MS

# shm/layout.h: Gate.mode and Gate.deadline_ns, from the begin of `limits`.
GATE_MODE, GATE_DEADLINE, GATE_BYTES = 140, 144, 256
TURN, NO_DEADLINE = 2, 2**64 - 1


class Scene(unittest.TestCase):
    node_options = ()

    def setUp(self):
        self.lab = Lab(simulate=True, node_options=self.node_options)
        self.addCleanup(self.lab.close)
        self.broker = None
        self.start_broker()
        self.addCleanup(self.end_broker)

    # ---- The broker

    def start_broker(self):
        self.broker = start_broker(self.lab)

    def broker_pid(self):
        (pid,) = self.broker.processes("cusliced")
        return pid

    def end_broker(self):
        """Its socket does not stay: the lab would wait for its end."""
        if self.broker.running():
            os.kill(self.broker_pid(), signal.SIGCONT)
            os.kill(self.broker_pid(), signal.SIGTERM)
            self.broker.wait(20)
        (self.lab.run_directory / "broker.sock").unlink(missing_ok=True)

    def ctl(self, *arguments, status=0):
        result = self.lab.run([self.lab.program("cuslicectl"), *map(str, arguments)], timeout=20)
        self.assertEqual(result.status, status, result.describe())
        return result

    # ---- Tenants

    def start_busy(self, name, seconds, *, compute, kernel_us=1000, memory="40%", **more):
        command = self.lab.sample("busy", "--seconds", seconds, "--kernel-us", kernel_us, "--timeline")
        return self.lab.start(command, Slice(memory, compute, name=name, **more))

    def start_pair(self, computes, seconds):
        """Two saturating tenants `a` and `b`, once both run in turns."""
        pair = [self.start_busy(name, seconds, compute=compute) for name, compute in zip("ab", computes)]
        wait_until_busy(self.lab, pair)
        time.sleep(0.5)
        self.in_turn("b")
        return pair

    def timelines(self, tenants):
        return [Timeline.of(tenant.finish(90).json) for tenant in tenants]

    def process(self, tenant):
        (pid,) = tenant.processes("busy")
        return pid

    def in_turn(self, name):
        """Returns while the slice holds a turn that has a deadline, and not only its last moments."""
        path = pathlib.Path(self.lab.run_directory, "slices", name, "limits")
        with open(path, "rb") as file, mmap.mmap(file.fileno(), GATE_BYTES, access=mmap.ACCESS_READ) as limits:
            end = time.monotonic() + 10
            while time.monotonic() < end:
                (mode,) = struct.unpack_from("I", limits, GATE_MODE)
                (deadline,) = struct.unpack_from("Q", limits, GATE_DEADLINE)
                if mode == TURN and deadline != NO_DEADLINE and deadline > time.monotonic_ns() + 2 * MS:
                    return
        self.fail(f"{name} never got a turn")

    # ---- What was seen

    def assert_share(self, timelines, since_ns, until_ns, share, points=4):
        done = [timeline.done_ns(since_ns, until_ns) for timeline in timelines]
        self.assertGreater(sum(done), 0.8 * (until_ns - since_ns), "the GPU idled")
        self.assertAlmostEqual(100 * done[0] / sum(done), share, delta=points)

    def assert_rate(self, timeline, since_ns, until_ns, least):
        """GPU time received / wall time."""
        self.assertGreaterEqual(timeline.done_ns(since_ns, until_ns) / (until_ns - since_ns), least)


def now():
    return time.monotonic_ns()
