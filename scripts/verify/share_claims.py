# SPDX-License-Identifier: Apache-2.0
"""Claims about shares of GPU time: who gets how much, how soon, and that a cap and a neighbour cost what is said."""

import functools
import statistics
import time

from . import loads
from .contest import contest, wait_until_busy, window
from .lab import Slice
from .table import Row, percent
from .timelines import jain, shares

PAIRS = ((75, 25), (30, 70), (90, 10))
# Length of the kernels in microseconds: one, or from .. to.
KERNELS = ((20,), (1000,), (50_000,), (20, 50_000))
TURN_PART = loads.QUANTUM_NS / (loads.QUANTUM_NS + loads.SWITCH_NS)


def kernel_options(kernels):
    return ("--kernel-us", kernels[0], *(("--longest-us", kernels[1]) if len(kernels) > 1 else ()))


def kernels_as_text(kernels):
    texts = [f"{us} µs" if us < 1000 else f"{us / 1000:g} ms" for us in kernels]
    return " … ".join(texts) + (", mixed" if len(texts) > 1 else "")


@functools.cache
def time_slicing(new_lab, model, kernels, seconds):
    """How busy the driver keeps the GPU by itself, with two such tenants and no cuslice."""
    with new_lab() as lab:
        return contest(lab, [(None, ())] * 2, seconds, options=kernel_options(kernels)).busy


def pairs_get_their_share(lab, settings):
    """Two saturating tenants get their share to 1 point over 10 s, and the GPU is kept busy."""
    seconds = 30 if settings.long else 10
    for kernels in KERNELS:
        by_itself = time_slicing(lab.like_this, lab.model, kernels, 3)
        for pair in PAIRS:
            entries = [(own, ()) for own in loads.pair_of(lab, pair)]
            result = contest(lab, entries, seconds, options=kernel_options(kernels))
            worst = max(abs(result.share(i) - pair[i] / 100) for i in range(2))
            least = max(TURN_PART - 0.003, by_itself)
            yield Row(
                f"{pair[0]}/{pair[1]}, kernels of {kernels_as_text(kernels)}",
                "within 1 point of the share",
                f"{percent(result.share(0), 2)} / {percent(result.share(1), 2)}",
                worst <= 0.01,
            )
            yield Row(
                f"{pair[0]}/{pair[1]}, kernels of {kernels_as_text(kernels)}: GPU busy",
                f"{percent(TURN_PART - 0.003)}, and the driver's own {percent(by_itself)}",
                percent(result.busy, 2),
                # A tenth of a point is what two looks at the same thing differ by.
                result.busy >= least - 0.001,
            )


def eight_share_alike(lab, settings):
    """Eight saturating tenants with the same share get 12.5 % each, to 1 point; Jain's index is at least 0.999."""
    entries = [(own, ()) for own in loads.pair_of(lab, (12,) * 8)]
    result = contest(lab, entries, 30 if settings.long else 10)
    parts = [result.share(i) for i in range(8)]
    yield Row(
        "eight tenants with 12 % each",
        "12.5 ± 1 % each",
        f"{percent(min(parts), 2)} to {percent(max(parts), 2)}",
        all(abs(part - 0.125) <= 0.01 for part in parts),
    )
    yield Row("the same: Jain's index", "at least 0.999", f"{jain(parts):.5f}", jain(parts) >= 0.999)


def unequal_kernels(lab, _):
    """50/50, one with kernels of 50 µs and one with kernels of 100 ms: 50 % each to 2 points over 30 s."""
    options = (("--kernel-us", 50), ("--kernel-us", 100_000))
    result = contest(lab, list(zip(loads.pair_of(lab, (50, 50)), options)), 30)
    yield Row(
        "50/50, kernels of 50 µs against 100 ms",
        "within 2 points over 30 s",
        f"{percent(result.share(0))} / {percent(result.share(1))}",
        abs(result.share(0) - 0.5) <= 0.02,
    )


def convergence(lab, settings):
    """After a tenant comes or goes, both have their share to 3 points within [100 ms, 1.1 s], and nobody stalls."""
    settled = (100_000_000, 1_100_000_000)
    for computes in ((50, 50), (70, 30), (25, 75)):
        for run in range(3 if settings.long else 1):
            change = loads.comes_and_goes(lab, computes)
            name = f"{computes[0]}/{computes[1]}" + (f", run {run + 1}" if settings.long else "")
            after = shares(change.timelines, *(change.came_ns + at for at in settled))
            yield Row(
                f"{name}: the second tenant comes",
                "share within 3 points over [100 ms, 1.1 s]",
                f"{percent(after[0])} / {percent(after[1])}",
                abs(after[0] - computes[0] / 100) <= 0.03,
            )
            alone = change.timelines[0].done_ns(*(change.went_ns + at for at in settled)) / (settled[1] - settled[0])
            yield Row(
                f"{name}: it goes", "the other has all, to 3 points", percent(alone), alone >= 0.97
            )
            if computes[0] == computes[1]:
                # With equal shares nobody's turn is more than one quantum away.
                gap = max(t.longest_gap_ns(change.came_ns, change.came_ns + settled[1]) for t in change.timelines)
                yield Row(
                    f"{name}: longest time without GPU",
                    "2 quanta = 10 ms",
                    f"{gap * 1e-6:.1f} ms",
                    gap <= 2 * loads.QUANTUM_NS,
                )


# What a capped slice runs: the sample, how many of it at once, and its options.
CAPPED = (
    ("kernel loop", "busy", 1, ("--kernel-us", 1000)),
    ("loop of 10 µs kernels", "busy", 1, ("--kernel-us", 10)),
    ("launch and sync", "launch_sync", 1, ("--kernel-us", 1000)),
    ("graphs", "graph_replay", 1, ("--kernel-us", 100)),
    ("cooperative", "launch_forms", 1, ("--form", "cooperative")),
    ("clusters (Ex)", "launch_forms", 1, ("--form", "cluster")),
    ("programmatic (Ex)", "launch_forms", 1, ("--form", "overlapped")),
    ("8 processes", "busy", 8, ("--kernel-us", 1000)),
)


def cap_holds_exactly(lab, _):
    """Alone with --compute-limit 20: 20 ± 1 % in each second from the first, however kernels are launched."""
    for name, sample, processes, options in CAPPED:
        terms = Slice(memory="50%", compute=20, compute_limit=20)
        with lab.hold(terms) as held:
            command = lab.sample(sample, "--seconds", 7, *options)
            tenants = [held.start(command) for _ in range(processes)]
            if lab.simulated:
                # All of them: the first second begins with the last one's first kernel.
                looks = [wait_until_busy(lab, tenants)]
                for _ in range(4):
                    time.sleep(max(0, 1 - (time.monotonic_ns() - looks[-1].now_ns) * 1e-9))
                    looks.append(lab.truth())
                parts = [sum(window(lab, tenants, *looks[i : i + 2])[0]) for i in range(4)]
            reports = [tenant.finish().json for tenant in tenants]
            if not lab.simulated:
                parts = [sum(report["gpu_ns_asked"] / (report["wall_seconds"] * 1e9) for report in reports)]
        yield Row(
            f"alone, --compute-limit 20: {name}",
            "20 ± 1 % in each second from the first",
            ", ".join(percent(part) for part in parts),
            all(abs(part - 0.20) <= 0.01 for part in parts),
        )


def alone_costs_nothing(lab, _):
    """One tenant alone in a slice without a cap: at least 99.5 % of its rate without a slice."""
    for sample, kernel_us in (("busy", 20), ("busy", 1000), ("launch_sync", 1000), ("graph_replay", 100)):
        plain, in_slice = [], []
        for _ in range(5):
            for rates, terms in ((plain, None), (in_slice, Slice(memory="50%", compute=25))):
                rates.append(contest(lab, [(terms, ())], 1, sample, ("--kernel-us", kernel_us)).rate(0))
        ratio = statistics.median(in_slice) / statistics.median(plain)
        yield Row(
            f"alone, no cap: {sample}, {kernel_us} µs",
            "99.5 % of its rate without a slice",
            f"{percent(ratio, 2)} of {statistics.median(plain):.0f} kernels/s",
            ratio >= 0.995,
        )
