# SPDX-License-Identifier: Apache-2.0
"""The sections of the report. Each takes a lab and the settings, and yields figures; plots go to `settings.plot`.

What a tenant received is taken from the GPU's clock by the tenants themselves, so it is the same on the simulator and
on a real GPU. Only memory at refusal is asked of the node or of the driver.
"""

import os
import signal
import statistics
import time

from verify import cost_claims, loads
from verify.contest import contest
from verify.lab import GIB, LabError, Slice
from verify.timelines import Timeline, hand_over_gaps_ns, jain, quantile, share_over_time, shares

from .metrics import Figure
from .svg import distribution, lines

QUOTA = 10 * GIB


def overhead(lab, settings):
    """What it costs: a launch, an allocation, a start, a broker with nothing to do."""
    added = cost_claims.launch_benchmark(lab)
    yield Figure("OH-005", added["launch_added_ns"])
    yield Figure("OH-008", added["launch_in_turn_added_ns"])
    yield Figure("OH-007", added["alloc_free_added_ns"])
    yield Figure("OH-007", added["alloc_free_10000_live_added_ns"], "10,000 live")
    instructions = cost_claims.fast_path_instructions(lab)
    if instructions is not None:
        yield Figure("CS-OH-1", instructions)
    for sample, kernel_us in (("busy", 20), ("launch_sync", 100)):
        lost = throughput_lost(lab, sample, kernel_us, settings)
        yield Figure("OH-010", lost, f"{sample}, kernels of {kernel_us} us")
    yield Figure("CS-OH-3", start_added_ms(lab, 5 if settings.quick else 15))
    used, wakes = cost_claims.idle_broker_work(lab, settings.seconds)
    yield Figure("OH-009", 100 * used)
    yield Figure("CS-OH-2", wakes)


def throughput_lost(lab, sample, kernel_us, settings):
    rates = ([], [])
    for _ in range(3 if settings.quick else 7):
        for side, terms in zip(rates, (None, Slice("50%", compute=25))):
            side.append(contest(lab, [(terms, ())], 0.5, sample, ("--kernel-us", kernel_us)).rate(0))
    plain, in_slice = map(statistics.median, rates)
    return 100 * (1 - in_slice / plain)


def start_added_ms(lab, rounds):
    program = lab.sample("launch_sync", "--seconds", 0, "--kernel-us", 10)
    with lab.hold(Slice("50%", compute=25)) as held:
        taken = ([], [])
        for _ in range(rounds):
            for side, start in zip(taken, (plain_start(lab, held), held.start)):
                begin = time.monotonic()
                start(program).finish(30)
                side.append(time.monotonic() - begin)
    return 1e3 * (statistics.median(taken[1]) - statistics.median(taken[0]))


def plain_start(lab, held):
    """Starts a program on the same GPU outside of the slice, with no launcher in between either."""
    outside = {name: value for name, value in held.environment.items() if name not in ("LD_PRELOAD", "CUSLICE_SLICE")}
    return lambda command: lab.start_with(command, outside)


def accuracy(lab, settings):
    """Whether each gets its share, at every length of kernels, and how soon."""
    kernels = (50, 1000) if settings.quick else (20, 50, 1000, 10_000, 50_000)
    by_itself = {}
    for kernel_us in kernels:
        timelines, begin, end = loads.pair_over_time(lab, (50, 50), settings.seconds, kernel_us, in_slices=False)
        by_itself[kernel_us] = busy(timelines, begin, end)
        yield Figure("CS-AC-2", 100 * by_itself[kernel_us], f"kernels of {kernel_us} us")
    for computes in ((75, 25), (30, 70), (90, 10)):
        for kernel_us in kernels:
            timelines, begin, end = loads.pair_over_time(lab, computes, settings.seconds, kernel_us)
            of = f"{computes[0]}/{computes[1]}, kernels of {kernel_us} us"
            yield Figure("IS-003", 100 * abs(shares(timelines, begin, end)[0] - computes[0] / 100), of)
            yield Figure("CS-AC-1", 100 * busy(timelines, begin, end), of)
    entries = [(own, ("--timeline",)) for own in loads.pair_of(lab, (12,) * 8)]
    tenants = [Timeline.of(result.json) for result in contest(lab, entries, settings.seconds).results]
    begin = max(tenant.end_ns[0] for tenant in tenants) + 500_000_000
    yield Figure("IS-008", jain(shares(tenants, begin, min(tenant.end_ns[-1] for tenant in tenants))))
    yield from convergence(lab, settings)


def busy(timelines, begin, end):
    return sum(timeline.done_ns(begin, end) for timeline in timelines) / (end - begin)


def convergence(lab, settings):
    computes, step = (70, 30), 50_000_000
    change = loads.comes_and_goes(lab, computes)
    yield Figure("IS-004", response_ms(change, computes[0] / 100, step), f"{computes[0]}/{computes[1]}")
    begin, end = change.came_ns - 10 * step, change.went_ns + 20 * step
    points = share_over_time(change.timelines, begin, end, step)
    settings.plot(
        "share_over_time",
        lines(
            "GPU time of two tenants; the second comes and goes",
            "seconds",
            "GPU time received in 50 ms, %",
            {
                f"tenant {i + 1}, {computes[i]} %": [(at, 100 * received[i]) for at, received in points]
                for i in range(2)
            },
            y_range=(0, 105),
            levels=[(f"{compute} %", compute) for compute in computes],
        ),
    )


def response_ms(change, share, step):
    """See IS-004; windows begin a tenth of their length apart."""
    settled = 0
    for after in range(step, 1_000_000_000, step // 10):
        at = change.came_ns + after
        if abs(shares(change.timelines, at - step, at)[0] - share) > 0.10:
            settled = after
    return (settled + step // 10 if settled else step) * 1e-6


def isolation(lab, settings):
    """What a neighbour can do to a slice: take its memory, its time, or die."""
    before = lab.truth().used_bytes
    hog = lab.start(lab.sample("hog", "--hold", 1.5), Slice(str(QUOTA), compute=50))
    hog.wait_for_line("HOLDING")
    held = lab.truth().used_bytes - before
    hog.finish()
    yield Figure("IS-001", 100 * held / QUOTA, "10 GiB, cudaMalloc")

    timelines, begin, end = loads.pair_over_time(lab, (50, 50), settings.seconds)
    windows = [received[0] for _, received in share_over_time(timelines, begin, end, 100_000_000)]
    yield Figure("IS-007", statistics.pstdev(windows) / statistics.mean(windows))

    kernels = zip(loads.pair_of(lab, (50, 50)), (1000, 100_000))
    entries = [(own, ("--kernel-us", us, "--timeline")) for own, us in kernels]
    result = contest(lab, entries, max(settings.seconds, 5))
    quiet, noisy = (Timeline.of(each.json) for each in result.results)
    begin = max(quiet.end_ns[0], noisy.end_ns[0]) + 500_000_000
    end = min(quiet.end_ns[-1], noisy.end_ns[-1])
    yield Figure("IS-009", 100 * (1 - quiet.done_ns(begin, end) / (end - begin) / 0.5))
    yield Figure("CS-IS-1", gap_after_death_ms(lab))


def gap_after_death_ms(lab):
    terms = loads.pair_of(lab, (50, 50))
    stays = lab.start(lab.sample("busy", "--seconds", 8, "--timeline"), terms[0])
    dies = lab.start(lab.sample("busy", "--seconds", 60, "--timeline"), terms[1])
    for tenant in (stays, dies):
        tenant.wait_for_line("RUNNING")
    time.sleep(1)
    killed_ns = time.monotonic_ns()
    for pid in dies.processes("busy"):
        os.kill(pid, signal.SIGKILL)
    dies.wait()
    timeline = Timeline.of(stays.finish(60).json)
    if timeline.end_ns[-1] < killed_ns + 1_000_000_000:
        raise LabError("the tenant that stays ended within a second of the other's death")
    return timeline.longest_gap_ns(killed_ns, killed_ns + 1_000_000_000) * 1e-6


def latency(lab, settings):
    """A latency slice's requests beside a batch slice that is never idle, and half-idle tenants."""
    curves = {}
    for kernel_us in (1000, 50_000) if settings.quick else (1000, 10_000, 50_000):
        of = f"batch kernels of {kernel_us // 1000} ms"
        for in_slices in (True, False):
            seen = loads.requests_beside_batch(lab, kernel_us, settings.seconds, in_slices)
            latencies_ms = [ns * 1e-6 for ns in seen.latency_ns]
            curves[f"{kernel_us // 1000} ms, {'slices' if in_slices else 'no slices'}"] = distribution(latencies_ms)
            if in_slices:
                yield Figure("CS-LA-1", quantile(latencies_ms, 0.5), of)
                yield Figure("CS-LA-2", quantile(latencies_ms, 0.99), of)
                yield Figure("CS-LA-3", 100 * seen.batch_of_the_rest(), of)
            else:
                yield Figure("CS-LA-4", quantile(latencies_ms, 0.99), of)
    settings.plot(
        "request_latency",
        lines(
            "Latency of 2 ms requests, beside batch kernels of a length",
            "milliseconds",
            "part of the requests",
            curves,
            x_range=(0, 1.05 * max(points[-1][0] for points in curves.values())),
            y_range=(0, 1.02),
        ),
    )
    rates = ([], [])
    for _ in range(3):
        for side, in_slices in zip(rates, (True, False)):
            side.append(loads.half_idle_rate(lab, min(settings.seconds, 3), in_slices))
    yield Figure("CS-HI-1", 100 * statistics.median(rates[0]) / statistics.median(rates[1]))


def hand_over(lab, settings):
    """How long the GPU is nobody's when a turn passes."""
    timelines, _, _ = loads.pair_over_time(lab, (50, 50), settings.seconds)
    switch_ns = loads.SWITCH_NS if lab.simulated else 0
    gaps_us = [(gap - switch_ns) / 1e3 for gap in hand_over_gaps_ns(*timelines)]
    if not gaps_us:
        raise LabError("the turn never passed")
    yield Figure("CS-HO-1", quantile(gaps_us, 0.5))
    yield Figure("CS-HO-2", quantile(gaps_us, 0.99))
    settings.plot(
        "hand_over",
        lines(
            "Hand-over from one slice to the next",
            "microseconds",
            "part of the hand-overs",
            {"50/50, kernels of 1 ms": distribution(gaps_us)},
            x_range=(0, max(2 * quantile(gaps_us, 0.95), 1)),
            y_range=(0, 1.02),
        ),
    )


SECTIONS = (overhead, accuracy, isolation, latency, hand_over)
