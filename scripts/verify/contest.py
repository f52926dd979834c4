# SPDX-License-Identifier: Apache-2.0
"""Tenants that want the GPU's time, and how much of it each got."""

import dataclasses
import time

from .lab import LabError

# From the start of the programs until the measurement begins: all of them run kernels by then.
SETTLE_SECONDS = 0.5


@dataclasses.dataclass
class Contest:
    received: list  # per tenant: GPU time received / wall time
    busy: float  # GPU time received by anybody / wall time
    results: list  # what each sample reported about its whole run

    def share(self, i):
        """Of the GPU time that the tenants received together."""
        return self.received[i] / sum(self.received)

    def rate(self, i):
        return self.results[i].json["kernels_per_second"]


def wait_until_busy(lab, tenants, timeout=30):
    """Until each tenant has received GPU time. The time of a look at which that is first so."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        truth = lab.truth()
        if all(lab.use_of(tenant, truth).busy_ns > 0 for tenant in tenants):
            return truth
        for tenant in tenants:
            if not tenant.running():
                raise LabError(f"ended early: {' '.join(tenant.command)}\n{tenant.wait().describe()}")
        time.sleep(0.005)
    raise LabError(f"no GPU time within {timeout} s: {[' '.join(tenant.command) for tenant in tenants]}")


def window(lab, tenants, before, after):
    """What each tenant received between two looks, and how busy the GPU was, as parts of the time between."""
    span = after.now_ns - before.now_ns
    received = [
        (lab.use_of(tenant, after).busy_ns - lab.use_of(tenant, before).busy_ns) / span for tenant in tenants
    ]
    return received, (after.busy_ns - before.busy_ns) / span


def contest(lab, entries, seconds, sample="busy", options=()):
    """Runs one sample for each entry (its slice or None, and its own options), and measures while all of them run.

    On a real GPU no driver says what each process received: there the work done is taken, in kernels of known length.
    """
    run_for = seconds + SETTLE_SECONDS + 1.0
    tenants = [
        lab.start(lab.sample(sample, "--seconds", run_for, *options, *own), terms) for terms, own in entries
    ]
    if lab.simulated:
        wait_until_busy(lab, tenants)
        time.sleep(SETTLE_SECONDS)
        before = lab.truth()
        time.sleep(seconds)
        received, busy = window(lab, tenants, before, lab.truth())
    results = [tenant.finish(run_for + 60) for tenant in tenants]
    if not lab.simulated:
        reports = [result.json for result in results]
        received = [report["gpu_ns_asked"] / (report["wall_seconds"] * 1e9) for report in reports]
        busy = min(1.0, sum(received))
    return Contest(received, busy, results)
