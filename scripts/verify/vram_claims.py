# SPDX-License-Identifier: Apache-2.0
"""Claims about a slice's quota: that it can be had, that it holds, and that what is shown of it can be relied on."""

import json
import os
import subprocess
import sys

from . import vram_matrix
from .lab import GIB, MIB, ROOT, LabError, Slice
from .memory_claims import GRANULE, seconds_until
from .table import Row, mib

sys.path.insert(0, str(ROOT / "tests" / "support"))
from told_tenant import DriverTenant  # noqa: E402

OUT_OF_MEMORY = 2
MODULE = 64 * MIB  # the variables of one of every_way's


def counter(lab, name, which):
    """One of a slice's counters, as `cuslicectl explain` shows it."""
    explained = lab.run([lab.program("cuslicectl"), "explain", name, "--json"])
    if explained.status != 0:
        raise LabError(explained.describe())
    return json.loads(explained.output)["counters"][which]


def eight_slices_fill_the_gpu(lab, _):
    """Eight slices of an eighth each take their whole quotas at the same time, contexts included: no driver OOM."""
    names = [f"eighth-{i}" for i in range(8)]
    slices = []
    try:
        for name in names:
            held = lab.hold(Slice("12.5%", compute=12, name=name))
            held.__enter__()
            slices.append(held)
        empty = lab.truth().used_bytes
        hogs = [held.start(lab.sample("hog", "--hold", 5)) for held in slices]
        for hog in hogs:
            hog.wait_for_line("HOLDING", timeout=60)
        taken = lab.truth().used_bytes - empty
        results = [hog.finish().json["apis"][0] for hog in hogs]
        driver_refusals = sum(counter(lab, name, "driver_refusals") for name in names)
    finally:
        for held in slices:
            held.__exit__()
    quotas = sum(result["total_bytes"] for result in results)
    left = max(result["free_refused_bytes"] for result in results)
    yield Row(
        "eight slices of an eighth, each taking all that it can at the same time",
        "each is refused at its quota, to 2 MiB, context included, and by the driver never",
        f"{mib(taken)} in use of {mib(quotas)} in quotas; at most {mib(left)} left in a slice; "
        f"{driver_refusals} refusals by the driver",
        driver_refusals == 0
        and left <= GRANULE
        and 0 <= quotas - taken <= 8 * GRANULE
        and all(result["error"] == OUT_OF_MEMORY for result in results),
    )


def no_grant_after_unasked_growth(lab, _):
    """When the driver has taken more unasked than the slice had left, nobody in it gets anything until that is repaid."""
    quota = 2 * GIB
    way = next(way for way in vram_matrix.WAYS if way.name == "module")
    with lab.hold(Slice("2GiB", compute=50, name="unasked")) as held:
        books = vram_matrix.Books(lab, "unasked")
        module = vram_matrix.Stopped(lab, held, way)
        module.reach("READY")
        peer = DriverTenant(held)
        while peer.do("take", 16) == 0:
            pass
        while peer.do("take", 2) == 0:
            pass
        for _ in range(2):
            peer.do("free")
        module.go_on()
        pieces = module.reach("HOLDING")["pieces"]
        agreed = seconds_until(books.agree, vram_matrix.SETTLED) is not None
        over = books.true() - quota
        owed, answers = over, []
        while owed > -GRANULE:
            answers.append((owed, peer.do("take", 2)))
            peer.do("free")
            owed = books.true() - quota
        granted = peer.do("take", 2) == 0
        module.kill()
        peer.end()
    kept = all(result == OUT_OF_MEMORY for owed, result in answers)
    yield Row(
        "a module takes 64 MiB of variables unasked where 4 MiB were left",
        "charged for it; nothing is granted to anybody in the slice until the use is under the quota",
        f"{pieces} module, {mib(over)} above the quota; {len(answers)} requests refused while above"
        + ("" if kept else ", NOT ALL")
        + ("; granted again below" if granted else "; STILL REFUSED below"),
        agreed and 0 < over <= MODULE and kept and len(answers) > 1 and granted,
    )


def tested(lab, what, bound, *command):
    """A row that a test of the build decides."""
    environment = os.environ | {"CUSLICE_BUILD": str(lab.build), "PYTHONPATH": str(ROOT / "scripts")}
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    passed = run.returncode == 0
    last = (run.stdout + run.stderr).strip().splitlines()[-1:]
    return Row(what, bound, "passed" if passed else f"status {run.returncode}: {' '.join(last)}", passed)


def what_is_shown(lab, _):
    """Free memory never rises while programs only take; a quota follows `cuslicectl set` at once."""
    test = ROOT / "tests" / "behaviour" / "slice_tells_test.py"
    for what, bound, case in (
        ("free memory while up to three processes only take, by all that show it", "never rises; all agree",
         "free_never_rises_while_programs_only_take"),
        ("cuslicectl set --memory, up, down and below the use", "at once; below the use nothing new, and `ls` says so",
         "a_quota_follows_set_at_once_and_survives_the_broker"),
    ):
        yield tested(lab, what, bound, sys.executable, test, f"SliceTells.test_{case}")


def the_ledger_is_safe(lab, _):
    """All interleavings of the ledger's protocol with kills and reapers are explored."""
    yield tested(
        lab,
        "the ledger's protocol, by model: 3 processes and a kill; 2 processes, 2 reapers and a slot taken again",
        "no state over quota, nothing leaked; three broken protocols are found out",
        lab.program("tests/limiter_test"),
        "--gtest_filter=LedgerModel.*",
    )


def ledger_memory(lab, _):
    """What the host memory of a process grows by for each live allocation, beyond what it does without a slice."""
    for way, count in (("linear", 200_000), ("physical", 20_000)):
        command = [lab.program("tests/many_allocations"), way, count]
        direct = lab.run(command).json["bytes_each"]
        ours = lab.run(command, Slice("60GiB", compute=50)).json["bytes_each"]
        yield Row(
            f"host memory for each of {count:,} live allocations: {way}",
            "at most 64 bytes more than without a slice",
            f"{ours - direct:.1f} bytes more",
            ours - direct <= 64,
        )
