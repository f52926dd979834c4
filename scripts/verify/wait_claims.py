# SPDX-License-Identifier: Apache-2.0
"""Claims about waiting: a latency slice's requests, half-idle tenants, the passing of a turn."""

import statistics

from . import loads
from .contest import wait_until_busy
from .lab import LabError, Slice
from .table import Row, percent
from .timelines import hand_over_gaps_ns, quantile

HAND_OVER_NS = 50_000
HAND_OVER_P99_NS = 150_000
LATENCY_BOUND_NS = 2 * loads.REQUEST_NS + loads.DRIVER_SLICE_NS + 2 * loads.SWITCH_NS + HAND_OVER_P99_NS
INTERLOCKS = {
    "later_launch": "a kernel that waits for a later launch",
    "persistent": "a kernel that stays",
    "two_ranks": "two ranks that wait for each other",
    "host_function": "a host function that lets another thread launch",
}
# Two slices, each with a turn and the time until a turn that does not end is overlapped.
LONGEST_WAIT_NS = 2 * (loads.QUANTUM_NS + 250_000_000)
ROUNDS = 100


def latency_is_bounded(lab, settings):
    """2 ms of kernels every 20 ms in a latency slice, beside a saturating batch slice: the p99 is bounded."""
    for kernel_us in (1000, 10_000, 50_000):
        seen = loads.requests_beside_batch(lab, kernel_us, 30 if settings.long else 10)
        p50, p99 = (quantile(seen.latency_ns, part) for part in (0.5, 0.99))
        name = f"latency slice beside kernels of {kernel_us // 1000} ms"
        yield Row(
            name,
            f"p99 ≤ {LATENCY_BOUND_NS * 1e-6:.2f} ms: 2 × own + driver slice + 2 switches + hand-over",
            f"p50 {p50 * 1e-6:.2f}, p99 {p99 * 1e-6:.2f} ms of {len(seen.latency_ns)} requests",
            p99 <= LATENCY_BOUND_NS,
        )
        yield Row(
            f"{name}: batch",
            "97 % of the rest",
            percent(seen.batch_of_the_rest()),
            seen.batch_of_the_rest() >= 0.97,
        )


def half_idle_tenants(lab, settings):
    """Two half-idle tenants together do at least 95 % of what they do under the driver's own time-slicing."""
    seconds = 10 if settings.long else 3
    rates = {True: [], False: []}
    for _ in range(3):
        for in_slices, seen in rates.items():
            seen.append(loads.half_idle_rate(lab, seconds, in_slices))
    ours, without = statistics.median(rates[True]), statistics.median(rates[False])
    yield Row(
        "two half-idle tenants (0.5 ms kernel, 0.5 ms host)",
        "95 % of the driver's own time-slicing",
        f"{percent(ours / without)} of {without:.0f} kernels/s",
        ours >= 0.95 * without,
    )


def hand_over(lab, settings):
    """From the end of a slice's last kernel to the begin of the next slice's first, less the driver's own switch."""
    timelines, _, _ = loads.pair_over_time(lab, (50, 50), 30 if settings.long else 10)
    gaps = [gap - loads.SWITCH_NS for gap in hand_over_gaps_ns(*timelines)]
    median, p99 = (quantile(gaps, part) for part in (0.5, 0.99))
    yield Row(
        "hand-over",
        f"median ≤ {HAND_OVER_NS // 1000} µs",
        f"median {median / 1e3:.0f}, p99 {p99 / 1e3:.0f} µs of {len(gaps)}",
        median <= HAND_OVER_NS,
    )


def nothing_deadlocks(lab, _):
    """Work that waits for work that is launched later gets through: beside a saturating neighbour, and under a cap."""
    for beside, terms in (("a saturating slice", Slice("40%", compute=50)), ("", Slice("40%", 20, compute_limit=20))):
        part = terms.compute / 100
        for case, what in INTERLOCKS.items():
            options = ("--case", case, "--rounds", ROUNDS)
            neighbour = None
            if beside:
                neighbour = lab.start(lab.sample("busy", "--seconds", 120), Slice("40%", compute=50))
                if lab.simulated:
                    wait_until_busy(lab, [neighbour])
            name = f"{what}, {'beside ' + beside if beside else 'under a cap of 20 %'}"
            program = lab.start(lab.sample("interlock", *options), terms)
            try:
                seen = program.finish(60).json
            except LabError as error:
                yield Row(name, "it ends", str(error).splitlines()[0], False)
                continue
            finally:
                if neighbour:
                    neighbour.kill()
            # What stays, stays for all rounds; its work is half of what is said for a round, for it is launched once.
            work = seen["round_work_ns"] * (ROUNDS / 2 + 1 if case == "persistent" else 1)
            bound = work / part + LONGEST_WAIT_NS
            yield Row(
                name,
                f"longest round ≤ {bound * 1e-9:.2f} s: its work at its share, and the longest wait",
                f"{seen['longest_round_ns'] * 1e-9:.3f} s",
                seen["longest_round_ns"] <= bound,
            )
