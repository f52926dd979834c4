# SPDX-License-Identifier: Apache-2.0
"""Claims about memory: what a slice shows, and what can be had in it."""

import os
import shlex
import signal
import subprocess
import time

from .lab import GIB, MIB, ROOT, LabError, Slice
from .table import Row, mib

APIS = ("malloc", "pitch", "managed", "async", "pool", "vmm", "array", "mipmap")
RUNTIMES = [
    f"runtime_check-{generation}-{linkage}-{stream}"
    for generation in (12, 13)
    for linkage in ("static", "shared")
    for stream in ("legacy", "per-thread")
]
OUT_OF_MEMORY = 2
GRANULE = 2 * MIB
# The least that the driver makes a pool grow by; less than that of a slice may stay out of a pool's reach.
POOL_GROWTH = 32 * MIB
POOL_APIS = ("async", "pool")


def most_left(api):
    """Bytes of a full slice that may be left when that API is refused."""
    return POOL_GROWTH - GRANULE if api in POOL_APIS else GRANULE


def slice_use(lab, name):
    """Bytes that cuslice charges to a slice of GPU 0, as `cuslicectl ls --json` says."""
    for entry in lab.slices()["slices"]:
        if entry["id"] == name:
            return entry["gpus"][0]["used_bytes"]
    raise LabError(f"cuslicectl ls does not show the slice '{name}'")


def seconds_until(holds, limit=5.0):
    """How long it takes until that is so; None if it isn't within the limit."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit:
        if holds():
            return time.monotonic() - begin
        time.sleep(0.01)
    return None


def hog_in_a_slice(lab, _):
    """A hog in a 10 GiB slice is refused with error 2 at the quota to within 2 MiB, by each API; all comes back.

    Pools grow by 32 MiB at a time, so from those it is refused to within one such unit."""
    quota = 10 * GIB
    for api in APIS:
        # All that the GPU lost to it: the driver lists managed memory under no process.
        before = lab.truth().used_bytes
        hog = lab.start(lab.sample("hog", "--api", api, "--hold", 0.3), Slice("10GiB", compute=50))
        hog.wait_for_line("HOLDING")
        held = lab.truth().used_bytes - before
        result = hog.finish().json["apis"][0]
        unused = quota - held
        holds = (
            result["error"] == OUT_OF_MEMORY
            and 0 <= unused <= most_left(api)
            and result["total_bytes"] == quota
            and result["taken_again_bytes"] == result["taken_bytes"]
            and result["free_after_bytes"] >= result["free_before_bytes"]
        )
        yield Row(
            f"hog in a 10 GiB slice: {api}",
            f"error 2; 0 to {most_left(api) // MIB} MiB left, context included"
            + (" (pools grow by 32 MiB)" if api in POOL_APIS else "")
            + "; the same again after freeing",
            f"error {result['error']}; {mib(unused)} left; again {mib(result['taken_again_bytes'])}"
            f" of {mib(result['taken_bytes'])}",
            holds,
        )


def nothing_is_left(lab, _):
    """Within 1 s of a hog's end, by itself or by kill -9, its memory is back on the GPU and in the slice."""
    with lab.hold(Slice("10GiB", compute=50, name="left")) as held:
        for how in ("exit", "kill -9"):
            hog = held.start(lab.sample("hog", "--hold", 30 if how == "kill -9" else 1.5))
            hog.wait_for_line("HOLDING")
            charged = slice_use(lab, "left")
            if how == "kill -9":
                for pid in hog.processes():
                    os.kill(pid, signal.SIGKILL)
            hog.wait()
            took = seconds_until(lambda: slice_use(lab, "left") == 0 and not lab.truth().processes)
            yield Row(
                f"memory after {how}",
                "nothing left after 1 s, on the GPU and in the slice",
                f"{mib(charged)} charged; " + ("still there after 5 s" if took is None else f"gone in {took:.2f} s"),
                charged > 9 * GIB and took is not None and took <= 1.0,
            )


def race_for_memory(lab, _):
    """Two processes of a slice race to allocate, 1,000 rounds: the sum never passes the quota."""
    quota = 10 * GIB
    racers = lab.start(
        lab.sample("multi_process", "--rounds", 1000, "--chunk-mib", 256), Slice("10GiB", compute=50)
    )
    most, looks = 0, 0
    while racers.running():
        most = max(most, lab.use_of(racers).used_bytes)
        looks += 1
        time.sleep(0.002)
    result = racers.finish(300).json
    # Contexts are charged too: of two, each less than 1 GiB. More than that and a chunk left is a wrong refusal.
    enough = result["least_held_at_refusal_bytes"] > quota - 2 * GIB
    yield Row(
        "two processes race, 1,000 rounds",
        "sum never above 10 GiB; refused only when full",
        f"most {mib(most)} in {looks} looks, {mib(result['most_held_bytes'])} by the programs' own count; "
        f"least at refusal {mib(result['least_held_at_refusal_bytes'])}",
        looks > 0 and most <= quota and result["most_held_bytes"] <= quota and enough,
    )


def runtime_programs(lab, _):
    """Programs of both runtimes, both linkages and both default streams give the same results; their quota holds."""
    expected = lab.run([lab.program(f"samples/{RUNTIMES[0]}")])
    if not expected.succeeded:
        raise LabError(f"{RUNTIMES[0]} fails without a slice: {expected.describe()}")
    quota = 4 * GIB
    for program in RUNTIMES:
        plain = lab.run([lab.program(f"samples/{program}")])
        in_slice = lab.run(
            [lab.program(f"samples/{program}"), "--until-refused", "--json"], Slice("4GiB", compute=50)
        )
        printed = "".join(line + "\n" for line in in_slice.output.splitlines() if not line.startswith("{"))
        same = plain.output == expected.output and printed == expected.output
        results = in_slice.json["apis"] if in_slice.succeeded else []
        at_quota = bool(results) and all(
            r["error"] == OUT_OF_MEMORY and r["total_bytes"] == quota and r["free_refused_bytes"] <= most_left(r["api"])
            for r in results
        )
        yield Row(
            program,
            "same results; refused at 4 GiB, to 2 MiB (from pools, which grow by 32 MiB, to 30 MiB)",
            ("same results" if same else "OTHER RESULTS")
            + "; "
            + (", ".join(f"{r['api']} {mib(r['free_refused_bytes'])} left" for r in results) or "failed"),
            same and at_quota,
        )


def clients_python():
    """The interpreter that has the clients' wheels; None if they are not here."""
    told = os.environ.get("CUSLICE_CLIENTS_PYTHON")
    if told:
        return told
    setup = [ROOT / "scripts" / "setup.sh", "--print-env"]
    printed = subprocess.run(setup, capture_output=True, text=True, check=True).stdout
    words = dict(word.split("=", 1) for word in shlex.split(printed))
    return words["CUSLICE_CLIENTS_PYTHON"] or None


def torch_in_a_slice(lab, _):
    """The unmodified torch wheel in a 4 GiB slice sees 4 GiB, gets its OutOfMemoryError past it, and goes on."""
    python = clients_python()
    if not python:
        raise LabError("torch is not here: run scripts/setup.sh --clients")
    program = ROOT / "tests" / "clients" / "torch_memory.py"
    for allocator in ("", "expandable_segments:True", "backend:cudaMallocAsync"):
        result = lab.run(
            [python, program, 4 * GIB], Slice("4GiB", compute=50), {"PYTORCH_CUDA_ALLOC_CONF": allocator}, timeout=180
        )
        checks = result.json["checks"] if result.succeeded else {}
        missed = [what for what, holds in checks.items() if not holds]
        yield Row(
            f"torch, {allocator or 'its default allocator'}",
            "sees 4 GiB; 5 GiB is refused; then 1 GiB is had; NVML agrees",
            ("all so" if not missed else "not so: " + ", ".join(missed))
            if checks
            else "failed: " + (result.errors.strip().splitlines() or ["no output"])[-1],
            bool(checks) and not missed,
        )
