# SPDX-License-Identifier: Apache-2.0
"""Two tenants on one GPU, in slices of 30 GB / 75 % and 10 GB / 25 %, and then the same two without slices."""

import argparse
import contextlib
import dataclasses
import sys

from . import table
from .contest import contest
from .lab import GIB, MIB, Lab, LabError, Slice
from .table import Row, percent, size

KERNEL_US = 1000
ALONE_SECONDS = 2
SHARED_SECONDS = 6
SLICES = (Slice("30GB", compute=75), Slice("10GB", compute=25))
QUOTAS = (30e9, 10e9)
NAMES = ("tenant A", "tenant B")


@dataclasses.dataclass
class Side:
    """What both tenants had, in one of the two ways: lists with an entry for each."""

    seen: list
    taken: list  # at refusal, by the program's own account
    held: list  # at refusal, as the GPU knows it, with what the driver took for the process
    received: list
    share: list
    alone: list  # kernels per second with the GPU to itself
    shared: list


def memory(lab, terms):
    """First A and then B takes all it can get, and holds it until both were refused. Without slices A leaves B so
    little that not even B's context fits: its first call is refused, and it sees and takes nothing."""
    hogs, fits = [], []
    for own in terms:
        hogs.append(lab.start(lab.sample("hog", "--hold", 3), own))
        fits.append(hogs[-1].wait_for_line("HOLDING", may_end=True))
    truth = lab.truth()
    held = [lab.use_of(hog, truth).used_bytes for hog in hogs]
    seen, taken = [], []
    for hog, fitted in zip(hogs, fits):
        if not fitted:
            result = hog.wait()
            if "cudaErrorMemoryAllocation" not in result.errors:
                raise LabError(f"failed otherwise than for want of memory: {result.describe()}")
            seen.append(0)
            taken.append(0)
            continue
        result = hog.finish().json["apis"][0]
        if result["error"] != 2:
            raise LabError(f"refused with error {result['error']}, not 2 (out of memory)")
        seen.append(result["total_bytes"])
        taken.append(result["taken_bytes"])
    return seen, taken, held


def measure(lab, terms, say):
    say("  memory: first A, then B takes all it can get")
    seen, taken, held = memory(lab, terms)
    options = ("--kernel-us", KERNEL_US)
    say("  throughput alone: one after the other")
    alone = [contest(lab, [(own, ())], ALONE_SECONDS, options=options).rate(0) for own in terms]
    say("  GPU time: both at once")
    both = contest(lab, [(own, ()) for own in terms], SHARED_SECONDS, options=options)
    shares = [both.share(i) for i in range(2)]
    return Side(seen, taken, held, both.received, shares, alone, [both.rate(i) for i in range(2)])


def rows_with_slices(side):
    for i, name in enumerate(NAMES):
        quota, share = QUOTAS[i], SLICES[i].compute / 100
        relative = side.shared[i] / side.alone[i]
        yield Row(
            f"{name}: memory seen",
            f"{size(quota)}",
            size(side.seen[i]),
            abs(side.seen[i] - quota) <= 2 * MIB,
        )
        yield Row(
            f"{name}: memory held at refusal, by the GPU's account",
            f"{size(quota)} - 2 MiB or up to it",
            size(side.held[i]),
            quota - 2 * MIB <= side.held[i] <= quota,
        )
        yield Row(
            f"{name}: memory the program took",
            "at most 1 GiB less",
            size(side.taken[i]),
            quota - GIB <= side.taken[i] <= quota,
        )
        yield Row(
            f"{name}: GPU time received",
            f"{percent(share, 0)} ± 3 points",
            percent(side.share[i]),
            abs(side.share[i] - share) <= 0.03,
        )
        yield Row(
            f"{name}: throughput shared / alone",
            f"{percent(share, 0)}, -8 to +3 points",
            f"{side.shared[i]:.0f} / {side.alone[i]:.0f} kernels/s = {percent(relative)}",
            share - 0.08 <= relative <= share + 0.03,
        )


def rows_without_slices(side, total):
    """What the same programs do to each other without slices: nobody is held to anything."""
    yield Row("tenant A: memory seen", f"the whole GPU, {size(total)}", size(side.seen[0]), side.seen[0] >= 0.99 * total)
    yield Row(
        "tenant A: memory held at refusal", "all of it", size(side.held[0]), 0.99 * total <= side.held[0] <= total
    )
    yield Row(
        "tenant B: memory taken at refusal",
        "what A left: no more than 1 GiB",
        size(side.taken[1]),
        side.taken[1] <= GIB,
    )
    for i, name in enumerate(NAMES):
        yield Row(
            f"{name}: GPU time received",
            "50 % ± 5 points",
            percent(side.share[i]),
            abs(side.share[i] - 0.5) <= 0.05,
        )


def size_or_nothing(count):
    return size(count) if count else "nothing"


def as_table(with_slices, without):
    """All values side by side, for the reader; the bounds are a table of their own."""
    fields = (
        ("memory seen", "seen", size_or_nothing),
        ("memory taken at refusal", "taken", size_or_nothing),
        ("  with what the driver took", "held", size_or_nothing),
        ("GPU time received", "share", percent),
        ("throughput alone, kernels/s", "alone", "{:.0f}".format),
        ("throughput shared, kernels/s", "shared", "{:.0f}".format),
    )
    cells = [
        (label, *(show(getattr(side, field)[i]) for side in (with_slices, without) for i in range(2)))
        for label, field, show in fields
    ]
    heads = ("", "A in 30 GB / 75 %", "B in 10 GB / 25 %", "A, no slice", "B, no slice")
    return table.layout(heads, cells, (28, 17, 17, 14, 14))


def compare(lab, say):
    """Both ways on one GPU: the values and the rows that hold them to their bounds."""
    say("in slices of 30 GB / 75 % and 10 GB / 25 %:")
    with_slices = measure(lab, SLICES, say)
    say("the same two without slices:")
    without = measure(lab, (None, None), say)
    total = lab.truth().total_bytes
    return with_slices, without, list(rows_with_slices(with_slices)), list(rows_without_slices(without, total))


def main():
    parser = argparse.ArgumentParser(prog="scripts/demo.sh", description=__doc__)
    parser.add_argument("--simulated", action="store_true", help="use the simulated GPU even if there is a real one")
    arguments = parser.parse_args()
    try:
        with contextlib.closing(Lab(simulate=True if arguments.simulated else None)) as lab:
            if lab.simulated:
                print("No GPU here: this runs on the simulated H100, and every figure below is simulated.")
            else:
                print(f"This runs on the GPU of this machine: {lab.gpu_name}.")
            with_slices, without, rows, rows_without = compare(lab, lambda text: print(text, flush=True))
    except LabError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    label = "simulated H100" if lab.simulated else lab.gpu_name
    print(f"\nTwo tenants at once on one GPU ({label})\n\n{as_table(with_slices, without)}")
    print(f"\nWith slices\n\n{table.rows_as_table(rows)}")
    print(f"\nWithout slices\n\n{table.rows_as_table(rows_without)}\n")
    missed = [row for row in rows + rows_without if row.holds is not True]
    print(f"{len(missed)} of {len(rows + rows_without)} values out of bounds" if missed else "All within bounds.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
