# SPDX-License-Identifier: Apache-2.0
"""Claims about waiting: a latency slice's requests, half-idle tenants, the passing of a turn."""

import statistics

from . import loads
from .table import Row, percent
from .timelines import hand_over_gaps_ns, quantile

HAND_OVER_NS = 50_000
HAND_OVER_P99_NS = 150_000
LATENCY_BOUND_NS = 2 * loads.REQUEST_NS + loads.DRIVER_SLICE_NS + 2 * loads.SWITCH_NS + HAND_OVER_P99_NS


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
