# SPDX-License-Identifier: Apache-2.0
"""Loads that the claims about GPU time and the benchmarks have in common: each runs once and returns what it saw."""

import dataclasses
import time

from .contest import SETTLE_SECONDS, contest, wait_until_busy, window
from .lab import LabError, Slice
from .timelines import Timeline

# What the broker gives a tenant at a time (its --quantum-us), and what the driver by itself does: on the simulator
# these are its defaults, on a real GPU what is commonly seen.
QUANTUM_NS = 5_000_000
DRIVER_SLICE_NS = 2_000_000
SWITCH_NS = 100_000

REQUEST_NS = 2_000_000
REQUEST_PERIOD_NS = 20_000_000


def memory_for(lab, tenants):
    """What each of so many slices may have of this GPU, with room for what the driver keeps."""
    return f"{90 // tenants}%" if tenants > 1 else "50%"


def pair_of(lab, computes, **more):
    return [Slice(memory=memory_for(lab, len(computes)), compute=compute, **more) for compute in computes]


@dataclasses.dataclass
class Beside:
    """A request loop beside a batch tenant."""

    latency_ns: list
    received: list  # of the request loop and of the batch tenant: GPU time / wall time

    def batch_of_the_rest(self):
        return self.received[1] / (1 - self.received[0])


def requests_beside_batch(lab, kernel_us, seconds, in_slices=True):
    """2 ms of kernels every 20 ms in a latency slice, beside a batch slice that always has kernels of that length."""
    terms = (None, None)
    if in_slices:
        memory = memory_for(lab, 2)
        terms = (Slice(memory, compute=20, priority=True), Slice(memory, compute=80))
    run_for = seconds + SETTLE_SECONDS + 2
    batch = lab.start(lab.sample("busy", "--kernel-us", kernel_us, "--seconds", run_for + 1), terms[1])
    if lab.simulated:
        wait_until_busy(lab, [batch])
    request = ("--work-us", REQUEST_NS / 1e3, "--period-ms", REQUEST_PERIOD_NS / 1e6)
    requests = lab.start(lab.sample("request_loop", "--seconds", run_for - 1, *request), terms[0])
    received = None
    if lab.simulated:
        wait_until_busy(lab, [requests])
        time.sleep(SETTLE_SECONDS)
        before = lab.truth()
        time.sleep(seconds)
        received, _ = window(lab, [requests, batch], before, lab.truth())
    reports = [requests.finish(run_for + 60).json, batch.finish(run_for + 60).json]
    if received is None:
        received = [report["gpu_ns_asked"] / (report["wall_seconds"] * 1e9) for report in reports]
    # The first requests fall into the time in which the broker learns that there is a tenant.
    settled = int(SETTLE_SECONDS * 1e9 / REQUEST_PERIOD_NS)
    latencies = reports[0]["latency_ns"][settled:]
    if not latencies:
        raise LabError("the request loop made no request")
    return Beside(latencies, received)


def half_idle_rate(lab, seconds, in_slices=True):
    """Kernels per second of two tenants together, each with a kernel of 0.5 ms and then 0.5 ms on the host."""
    terms = pair_of(lab, (50, 50)) if in_slices else (None, None)
    result = contest(lab, [(own, ()) for own in terms], seconds, "launch_sync", ("--kernel-us", 500, "--pause-us", 500))
    # By the GPU's account of the time in which both ran: one may have started before the other.
    return sum(result.received) * 1e9 / 500_000


@dataclasses.dataclass
class Change:
    """A tenant runs; another comes, and goes."""

    timelines: list  # of the one that stays, and of the one that comes
    came_ns: int
    went_ns: int


def comes_and_goes(lab, computes, kernel_us=1000, seconds=2.5):
    options = ("--kernel-us", kernel_us, "--timeline")
    stays_for = seconds + 5
    terms = pair_of(lab, computes)
    stays = lab.start(lab.sample("busy", "--seconds", stays_for, *options), terms[0])
    stays.wait_for_line("RUNNING")
    time.sleep(1)
    comes = lab.start(lab.sample("busy", "--seconds", seconds, *options), terms[1])
    timelines = [Timeline.of(tenant.finish(stays_for + 60).json) for tenant in (comes, stays)][::-1]
    came, went = timelines[1].begin_ns, timelines[1].end_ns[-1]
    if timelines[0].end_ns[0] > came or timelines[0].end_ns[-1] < went + 1_200_000_000:
        raise LabError("the first tenant did not outlast the second: is the machine overloaded?")
    return Change(timelines, came, went)


def pair_over_time(lab, computes, seconds, kernel_us=1000, in_slices=True):
    """Timelines of two saturating tenants, and the time in which both ran."""
    terms = pair_of(lab, computes) if in_slices else (None, None)
    result = contest(lab, [(own, ()) for own in terms], seconds, options=("--kernel-us", kernel_us, "--timeline"))
    timelines = [Timeline.of(report.json) for report in result.results]
    begin = max(timeline.end_ns[0] for timeline in timelines) + int(SETTLE_SECONDS * 1e9)
    end = min(timeline.end_ns[-1] for timeline in timelines)
    return timelines, begin, end
