#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each cause for which a program is slow, and what `cuslicectl explain` says of it: `delays_test.py Delays.CASE`."""

import json
import time
import unittest

from scene import MS, QUANTUM_NS, Scene
from verify.lab import Slice


class Delays(Scene):
    def explain(self, name, seconds=3):
        """The last second of a slice that has run for `seconds`, once as figures and once as text."""
        time.sleep(seconds)
        window = json.loads(self.ctl("explain", name, "--json").output)["time"][0]
        parts = ("open_ns", "idle_ns", "received_ns", "capped_ns", "handover_ns", "gaps_ns")
        others = sum(other["waited_ns"] + other["beside_ns"] for other in window["neighbours"])
        self.assertEqual(sum(window[part] for part in parts) + others, window["span_ns"], window)
        self.assertLessEqual(window["span_ns"], 2001 * MS)
        return window, self.ctl("explain", name).output

    def part(self, window, key):
        return window[key] / window["span_ns"]

    def start(self, name, compute, *, sample="busy", limit=None, **options):
        """A tenant that runs until the scene ends."""
        words = [word for key, value in options.items() for word in ("--" + key.replace("_", "-"), value)]
        terms = Slice("40%", compute, limit, name)
        tenant = self.lab.start(self.lab.sample(sample, "--seconds", 60, *words), terms)
        self.addCleanup(tenant.kill)
        return tenant

    def test_a_neighbour_that_always_has_work_is_named(self):
        self.start("slow", 30)
        self.start("greedy", 70)
        window, text = self.explain("slow")
        self.assertEqual(window["verdict"], "neighbours", window)
        (other,) = window["neighbours"]
        self.assertEqual(other["id"], "greedy")
        self.assertGreater(other["waited_ns"] / window["span_ns"], 0.4, window)
        self.assertLess(other["late_ns"], other["waited_ns"] / 2)
        self.assertIn("most for greedy", text)

    def test_its_own_cap_is_told_from_neighbours(self):
        self.start("slow", 20, limit=20)
        window, text = self.explain("slow")
        self.assertEqual(window["verdict"], "cap", window)
        self.assertGreater(self.part(window, "capped_ns"), 0.6, window)
        self.assertEqual(window["neighbours"], [])
        self.assertIn("raise --compute-limit", text)

    def test_a_program_that_launches_too_little_is_told_so(self):
        # Capped at what it never reaches, so that it is measured although it is alone.
        self.start("slow", 50, limit=90, sample="request_loop", period_ms=50)
        window, text = self.explain("slow")
        self.assertEqual(window["verdict"], "own_launches", window)
        self.assertGreater(self.part(window, "idle_ns"), 0.6, window)
        self.assertIn("its own launches come too slowly", text)

    def test_turns_that_end_late_are_put_down_to_their_slice(self):
        self.start("slow", 50)
        self.start("coarse", 50, kernel_us=60_000)
        window, text = self.explain("slow")
        self.assertEqual(window["verdict"], "overruns", window)
        (other,) = window["neighbours"]
        self.assertEqual(other["id"], "coarse")
        self.assertGreater(other["late_turns"], 0)
        self.assertGreater(other["longest_late_ns"], QUANTUM_NS)
        self.assertIn("turns of coarse end late", text)

    def test_an_open_gate_holds_nothing_back(self):
        self.start("alone", 50)
        window, text = self.explain("alone", 2)
        self.assertEqual(window["verdict"], "open", window)
        self.assertIn("nothing holds its launches back", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
