# SPDX-License-Identifier: Apache-2.0
"""When parts stop, die or come in numbers, seen from the GPU: `failures_test.py Failures.CASE`."""

import os
import pathlib
import signal
import statistics
import time
import unittest

from scene import MS, NOISE_NS, RECLAIMED_NS, Scene, now

# The heartbeat is old after 500 ms, and a launch waits 250 ms before it looks at it.
SILENCE_NS = 750 * MS
# Of its share, what a slice gets at least where it paces itself and the driver goes round between it and others.
PACED_PART = 0.75


class Failures(Scene):
    def test_a_stopped_broker_leaves_the_slices_their_pace(self):
        pair = self.start_pair((70, 30), 6)
        stopped = now()
        os.kill(self.broker_pid(), signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(self.broker_pid(), signal.SIGCONT)
        again = now()
        self.assert_paced(self.timelines(pair), (70, 30), stopped, again)

    def test_a_killed_broker_is_missed_by_nobody_and_the_next_takes_over(self):
        pair = self.start_pair((70, 30), 7)
        held = self.held_bytes()
        killed = now()
        os.kill(self.broker_pid(), signal.SIGKILL)
        self.broker.wait()
        time.sleep(2.5)
        self.start_broker()
        again = now()
        self.assertEqual(self.held_bytes(), held)
        timelines = self.timelines(pair)
        self.assert_paced(timelines, (70, 30), killed, again)
        self.assert_share(timelines, again + 500 * MS, again + 2000 * MS, 70)

    def test_an_upgrade_under_load_costs_nobody_a_turn(self):
        pair = self.start_pair((70, 30), 6)
        begun = now()
        for _ in range(3):
            os.kill(self.broker_pid(), signal.SIGTERM)
            self.assertEqual(self.broker.wait(10).status, 0)
            self.start_broker()
            time.sleep(0.3)
        done = now()
        timelines = self.timelines(pair)
        for timeline in timelines:
            self.assertLess(timeline.longest_gap_ns(begun, done), SILENCE_NS + NOISE_NS)
        self.assert_share(timelines, done, done + 1500 * MS, 70)

    def assert_paced(self, timelines, computes, since_ns, until_ns):
        for timeline, compute in zip(timelines, computes):
            self.assertLess(timeline.longest_gap_ns(since_ns, until_ns), SILENCE_NS + NOISE_NS)
            self.assert_rate(timeline, since_ns + SILENCE_NS + NOISE_NS, until_ns, PACED_PART * compute / 100)

    def held_bytes(self):
        return {entry["id"]: entry["gpus"][0]["held_bytes"] for entry in self.lab.slices()["slices"]}

    def test_a_tenant_stopped_in_its_turn_holds_up_nobody(self):
        neighbour, victim = self.start_pair((50, 50), 8)
        stops = []
        for _ in range(4):
            self.in_turn("b")
            os.kill(self.process(victim), signal.SIGSTOP)
            stopped = now()
            time.sleep(0.5)
            os.kill(self.process(victim), signal.SIGCONT)
            stops.append((stopped, now()))
            time.sleep(0.8)
        timelines = self.timelines((neighbour, victim))
        for stopped, again in stops:
            self.assert_rate(timelines[0], stopped, again, 0.5)
            # What it did not use while it was stopped is not saved up.
            self.assert_share(timelines, again + 100 * MS, again + 800 * MS, 50)
        # The median: this machine stands still now and then, too.
        gaps = [timelines[0].longest_gap_ns(*stop) for stop in stops]
        self.assertLess(statistics.median_low(gaps), RECLAIMED_NS + NOISE_NS, gaps)

    def test_a_tenant_killed_in_its_turn_holds_up_nobody(self):
        neighbour, victim = self.start_pair((50, 50), 4)
        self.in_turn("b")
        os.kill(self.process(victim), signal.SIGKILL)
        killed = now()
        time.sleep(1)
        (timeline,) = self.timelines((neighbour,))
        self.assertLess(timeline.longest_gap_ns(killed, killed + 1000 * MS), RECLAIMED_NS + NOISE_NS)
        self.assert_rate(timeline, killed + 100 * MS, killed + 1000 * MS, 0.9)

    def test_a_tenant_that_never_drains_costs_its_neighbour_no_more_than_its_own_share(self):
        neighbour = self.start_busy("a", 6, compute=45)
        neighbour.wait_for_line("RUNNING")
        endless = self.start_busy("b", 1, compute=55, kernel_us=60_000_000)
        endless.wait_for_line("RUNNING")
        time.sleep(1)
        begun = now()
        time.sleep(2)
        killed = now()
        os.kill(self.process(endless), signal.SIGKILL)
        time.sleep(1)
        (timeline,) = self.timelines((neighbour,))
        # The driver goes round between the two by itself, and loses some of its time with that.
        self.assert_rate(timeline, begun, killed, 0.43)
        self.assert_rate(timeline, killed + 100 * MS, killed + 1000 * MS, 0.9)


class Numbers(Scene):
    def test_64_slices_on_one_gpu_get_the_same(self):
        tenants = [
            self.start_busy(f"slice-{i}", 60, compute=1, memory="1GiB", kernel_us=500) for i in range(64)
        ]
        for tenant in tenants:
            tenant.wait_for_line("RUNNING", timeout=90)
        time.sleep(2)
        cpu = self.broker_cpu_seconds()
        before = self.lab.truth()
        time.sleep(6)
        after = self.lab.truth()
        used = self.broker_cpu_seconds() - cpu
        span = after.now_ns - before.now_ns
        received = [
            (self.lab.use_of(tenant, after).busy_ns - self.lab.use_of(tenant, before).busy_ns) / span
            for tenant in tenants
        ]
        # Turns are much shorter than 64 programs on a few processors are woken in time for.
        self.assertGreater(sum(received), 0.75, "the GPU idled")
        for part in received:
            self.assertAlmostEqual(100 * part / sum(received), 100 / 64, delta=1)
        # 200 turns a second among 64 slices.
        self.assertLess(used / (span * 1e-9), 0.25)

    def broker_cpu_seconds(self):
        threads = pathlib.Path(f"/proc/{self.broker_pid()}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) * 1e-9


class EightGpus(Scene):
    node_options = ("--count", "8")

    def start_on(self, first, second, *, seconds, order=(0, 1), compute=None, name=None):
        """Launches on both GPUs; in a slice of both, if it has a share."""
        program = ["python3", os.path.join(os.path.dirname(__file__), "both_gpus.py"), *map(str, order), str(seconds)]
        if compute is None:
            return self.lab.start(program, environment={"CUDA_VISIBLE_DEVICES": f"{first},{second}"})
        options = ["--gpu", first, "--gpu", second, "--memory", "20%", "--compute", compute, "--name", name]
        return self.lab.start([self.lab.program("cuslicectl"), "run", *map(str, options), "--", *program])

    def rounds(self, tenants):
        return [tenant.finish(60).json["rounds"] for tenant in tenants]

    # How fast programs are that wait for both GPUs is for the host to say, so it is compared with the same programs
    # where the driver alone goes round between them.

    def test_a_ring_of_slices_over_two_gpus_each(self):
        seconds = 3
        ring = [(i, (i + 1) % 8) for i in range(8)]
        without = self.rounds([self.start_on(*pair, seconds=seconds) for pair in ring])
        rounds = self.rounds(
            [self.start_on(*pair, seconds=seconds, compute=33, name=f"ring-{pair[0]}") for pair in ring]
        )
        # Three slices that wait for each other can't do more together than a third each of the GPUs that they share.
        self.assertGreater(min(rounds), 0.33 * sum(without) / len(without), (rounds, without))

    def test_two_slices_that_launch_on_the_same_two_gpus_crosswise(self):
        seconds = 3
        orders = {"there": (0, 1), "back": (1, 0)}
        without = self.rounds([self.start_on(0, 1, seconds=seconds, order=order) for order in orders.values()])
        rounds = self.rounds(
            [
                self.start_on(0, 1, seconds=seconds, order=order, compute=50, name=name)
                for name, order in orders.items()
            ]
        )
        # In turns nobody fills the gaps in which a program waits for the host.
        self.assertGreater(sum(rounds), 0.4 * sum(without), (rounds, without))
        self.assertAlmostEqual(rounds[0] / sum(rounds), 0.5, delta=0.1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
