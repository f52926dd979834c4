# SPDX-License-Identifier: Apache-2.0
"""Every figure of the report: its id, what exactly it is, and the program that it comes from.

Ids without `CS-` are those of GPU-Virt-Bench, used where its definition says what to measure. Where that definition is
loose, what we measure is said here; where it can't be had from outside a program or is not cuslice's doing, there is
no row (bench/README.md lists those). `CS-` ids are our own.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Metric:
    id: str
    name: str
    unit: str
    better: str  # "lower" or "higher"
    definition: str
    program: str


_ALL = (
    Metric("OH-005", "API interception overhead", "ns", "lower",
           "cuLaunchKernel through an open gate less a direct call, on a driver that does nothing; median of runs",
           "launch_benchmark"),
    Metric("OH-007", "Memory tracking overhead", "ns", "lower",
           "cuMemAlloc + cuMemFree less the direct calls, on a driver that does nothing; one process, nothing else live",
           "launch_benchmark"),
    Metric("OH-008", "Rate limiter overhead", "ns", "lower",
           "cuLaunchKernel while GPU time is shared out and it is the slice's turn, less a direct call; amortised",
           "launch_benchmark"),
    Metric("CS-OH-1", "Instructions of the open gate", "instructions", "lower",
           "the longest way of any launch function from its first instruction to the jump into the driver, by disassembly",
           "objdump"),
    Metric("OH-009", "Broker's CPU time when idle", "%", "lower",
           "of one core, with 64 slices that have a context each and launch nothing (GPU-Virt-Bench: the NVML polling "
           "thread; there is none)", "request_loop x 64"),
    Metric("CS-OH-2", "Broker's wake-ups when idle", "1/s", "lower", "voluntary waits that ended, with the same 64 slices",
           "request_loop x 64"),
    Metric("OH-010", "Throughput lost alone", "%", "lower",
           "kernels per second in a slice with nobody else on the GPU, against no slice; median of alternating runs",
           "busy, launch_sync"),
    Metric("CS-OH-3", "Program start added", "ms", "lower",
           "a program that makes a context, runs one kernel and ends: in an existing slice against no slice; median of "
           "alternating runs", "launch_sync"),
    Metric("IS-001", "Memory limit accuracy", "%", "higher",
           "device memory of the process at its first refusal, as the GPU accounts for it (context included), of the quota",
           "hog"),
    Metric("IS-003", "Share error", "points", "lower",
           "GPU time received of what both tenants received, less the share; the larger of two saturating tenants "
           "(GPU-Virt-Bench divides an NVML utilisation, which cannot tell tenants apart)", "busy x 2"),
    Metric("CS-AC-1", "GPU busy", "%", "higher", "kernel time of both tenants of the time that both ran", "busy x 2"),
    Metric("CS-AC-2", "GPU busy under the driver's time-slicing", "%", "higher", "the same without slices", "busy x 2"),
    Metric("IS-004", "Response time", "ms", "lower",
           "after a second tenant's first kernel is launched: until the share over the 50 ms before and all later ones in "
           "the first second are within 10 points", "busy x 2"),
    Metric("IS-007", "QoS consistency", "ratio", "lower",
           "standard deviation / mean of the GPU time received in windows of 100 ms, saturating, 50/50", "busy x 2"),
    Metric("IS-008", "Fairness index", "ratio", "higher", "Jain's index over eight saturating tenants of equal share",
           "busy x 8"),
    Metric("IS-009", "Noisy neighbour", "%", "lower",
           "GPU time that a 50 % slice with kernels of 1 ms lacks of its half, beside a slice with kernels of 100 ms",
           "busy x 2"),
    Metric("CS-IS-1", "Gap after a neighbour's death", "ms", "lower",
           "longest time without a kernel of the other slice in the second after a slice's processes are killed in full "
           "use of the GPU (GPU-Virt-Bench's IS-010 is yes or no)", "busy x 2"),
    Metric("CS-LA-1", "Request latency, p50", "ms", "lower",
           "2 ms of kernels every 20 ms in a latency slice: from the first launch, or from when it was due if the one "
           "before was not done, to the end of the last", "request_loop, busy"),
    Metric("CS-LA-2", "Request latency, p99", "ms", "lower", "the same", "request_loop, busy"),
    Metric("CS-LA-3", "Batch beside requests", "%", "higher", "GPU time of the batch slice of what the requests leave",
           "request_loop, busy"),
    Metric("CS-LA-4", "Request latency without slices, p99", "ms", "lower", "the same, by the driver's own time-slicing",
           "request_loop, busy"),
    Metric("CS-HO-1", "Hand-over, median", "us", "lower",
           "from the end of a slice's last kernel to the begin of the next slice's first, by the GPU's clock, less the "
           "driver's own switch (100 us on the simulator; on a real GPU it is in the figure)", "busy x 2"),
    Metric("CS-HO-2", "Hand-over, p99", "us", "lower", "the same", "busy x 2"),
    Metric("CS-HI-1", "Half-idle tenants", "%", "higher",
           "kernels per second of two tenants with 0.5 ms kernel and 0.5 ms host each, against the driver's time-slicing",
           "launch_sync x 2"),
)
BY_ID = {metric.id: metric for metric in _ALL}


@dataclasses.dataclass
class Figure:
    """A metric as it was measured, once, with what it was measured on."""

    id: str
    value: float
    of: str = ""

    def as_json(self):
        metric = BY_ID[self.id]
        return {
            "id": self.id,
            "name": metric.name,
            "of": self.of,
            "value": self.value,
            "unit": metric.unit,
            "better": metric.better,
        }
