# SPDX-License-Identifier: Apache-2.0
"""Claims about GPU time: shares under contention, caps, and what a slice costs when nobody else is there."""

import functools
import statistics
import time

from .contest import contest, wait_until_busy, window
from .lab import Lab, Slice
from .table import Row, percent

SHARES = ((75, 25), (30, 70), (50, 50))
KERNELS_US = (50, 1000, 20_000)


@functools.cache
def time_slicing(simulated, kernel_us, seconds):
    """How busy the driver keeps the GPU by itself, with two such tenants and no cuslice."""
    with Lab(simulate=simulated) as lab:
        return contest(lab, [(None, ())] * 2, seconds, options=("--kernel-us", kernel_us)).busy


def shares_hold(lab, settings):
    """Two saturating tenants: GPU time within 3 points of the share, the GPU busy, and no less than without us."""
    seconds = 30 if settings.long else 10
    for kernel_us in KERNELS_US:
        alone = time_slicing(lab.simulated, kernel_us, 3)
        for pair in SHARES:
            entries = [(Slice(memory="20GB", compute=share), ()) for share in pair]
            result = contest(lab, entries, seconds, options=("--kernel-us", kernel_us))
            worst = max(abs(result.share(i) - pair[i] / 100) for i in range(2))
            yield Row(
                f"{pair[0]}/{pair[1]}, kernels of {kernel_us} µs",
                "within 3 points of the share",
                f"{percent(result.share(0))} / {percent(result.share(1))}",
                worst <= 0.03,
            )
            yield Row(
                f"{pair[0]}/{pair[1]}, kernels of {kernel_us} µs: GPU busy",
                f"95 %, and the driver's own {percent(alone)}",
                percent(result.busy),
                # A tenth of a point is what two looks at the same thing differ by.
                result.busy >= 0.95 and result.busy >= alone - 0.001,
            )


def alone_costs_nothing(lab, _):
    """One tenant alone, share 25 and no cap: at least 98 % of its throughput without a slice."""
    for sample, kernel_us in (("busy", 50), ("busy", 1000), ("launch_sync", 1000), ("graph_replay", 100)):
        plain, in_slice = [], []
        for _ in range(3):
            options = ("--kernel-us", kernel_us)
            plain.append(contest(lab, [(None, ())], 1, sample, options).rate(0))
            in_slice.append(contest(lab, [(Slice(memory="20GB", compute=25), ())], 1, sample, options).rate(0))
        ratio = statistics.median(in_slice) / statistics.median(plain)
        yield Row(
            f"alone, share 25, no cap: {sample}, {kernel_us} µs",
            "at least 98 % of its rate without a slice",
            f"{percent(ratio)} of {statistics.median(plain):.0f} kernels/s",
            ratio >= 0.98,
        )


def cap_holds(lab, _):
    """One tenant alone with --compute-limit 25 gets 25 ± 3 %, from its first second on."""
    for sample, kernel_us in (("busy", 1000), ("launch_sync", 1000), ("graph_replay", 100)):
        terms = Slice(memory="20GB", compute=25, compute_limit=25)
        tenant = lab.start(lab.sample(sample, "--seconds", 6, "--kernel-us", kernel_us), terms)
        if not lab.simulated:
            report = tenant.finish().json
            parts = [report["gpu_ns_asked"] / (report["wall_seconds"] * 1e9)]
        else:
            looks = [wait_until_busy(lab, [tenant])]
            for _ in range(4):
                time.sleep(max(0, 1 - (time.monotonic_ns() - looks[-1].now_ns) * 1e-9))
                looks.append(lab.truth())
            parts = [window(lab, [tenant], *looks[i : i + 2])[0][0] for i in range(4)]
            tenant.finish()
        yield Row(
            f"alone, --compute-limit 25: {sample}",
            "25 ± 3 % in each second from the first",
            ", ".join(percent(part) for part in parts),
            all(abs(part - 0.25) <= 0.03 for part in parts),
        )
