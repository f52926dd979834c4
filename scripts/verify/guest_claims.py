# SPDX-License-Identifier: Apache-2.0
"""Claims about being a good guest, and about what happens when something is missing or dies."""

import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import time

from .contest import wait_until_busy, window
from .lab import GIB, LabError, Slice
from .memory_claims import GRANULE, OUT_OF_MEMORY, slice_use
from .table import Row, mib, percent

NOT_READY = 802  # CUDA_ERROR_SYSTEM_NOT_READY


def cost_of_a_call(lab, _):
    """What cuLaunchKernel and cuMemAlloc + cuMemFree cost more than a direct call, on a driver that costs nothing."""
    program = lab.build / "bin" / "launch_benchmark"
    if not program.exists():
        raise LabError(f"{program} is not there")
    run = subprocess.run([program, "--json"], capture_output=True, text=True, check=False, timeout=300)
    if run.returncode != 0:
        raise LabError(f"launch_benchmark: status {run.returncode}: {run.stderr}")
    added = json.loads(run.stdout)
    for what, field, bound in (
        ("cuLaunchKernel, gate open", "launch_added_ns", 10),
        ("cuMemAlloc + cuMemFree, nothing else live", "alloc_free_added_ns", 150),
        ("cuMemAlloc + cuMemFree, 10,000 live", "alloc_free_10000_live_added_ns", 150),
    ):
        yield Row(what, f"adds at most {bound} ns", f"adds {added[field]:.1f} ns", added[field] <= bound)


def preload_of(lab):
    return ":".join(str(lab.build / "lib" / name) for name in ("libcuslice-cuda.so", "libcuslice-nvml.so"))


def cpu_seconds(command, environment):
    """What a program takes of its CPU, from the exec to its end: waiting for a CPU that others use is not in it."""
    pid = os.posix_spawn(command[0], command, environment)
    _, status, use = os.wait4(pid, 0)
    if status != 0:
        raise LabError(f"{' '.join(command)} ended with status {status}")
    return use.ru_utime + use.ru_stime


def added_seconds(command, environment, other, rounds):
    """By how much `other` costs more: the median over pairs that ran next to each other, in either order."""
    differences = []
    for i in range(rounds):
        first, second = (environment, other) if i % 2 == 0 else (other, environment)
        used = [cpu_seconds(command, first), cpu_seconds(command, second)]
        differences.append((used[1] - used[0]) * (1 if i % 2 == 0 else -1))
    return statistics.median(differences)


def programs_without_cuda(lab, settings):
    """bash, python3 and ls under the preload: same output, no thread, no file, and at most 10 µs more to start.

    The start is compared with two empty libraries, linked with the compiler's defaults, by the CPU time that it takes.
    All four are measured as copies in one folder, as installed libraries are: how a file was written decides how it
    lies in the page cache. A library of our size just written by the linker costs several microseconds more.
    """
    linked = []
    for name in ("one", "two"):
        linked.append(str(lab.directory / f"linked-{name}.so"))
        subprocess.run(["g++", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", linked[-1]], check=True)
    installed = lab.directory / "installed"
    installed.mkdir()
    empty, copies = (
        ":".join(str(shutil.copy(library, installed)) for library in libraries)
        for libraries in (linked, preload_of(lab).split(":"))
    )
    plain = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "CUSLICE_SLICE")}
    of_empty = {**plain, "LD_PRELOAD": empty}
    ours = {**plain, "LD_PRELOAD": copies}

    probe = (
        "import os; print(len(os.listdir('/proc/self/task')), sorted(os.listdir('/proc/self/fd')),"
        " sum('.so' not in line and ('/dev/shm' in line or 'cuslice/' in line) for line in open('/proc/self/maps')))"
    )
    commands = {
        "bash": ["/bin/bash", "-c", "echo out; echo err >&2; echo /proc/self/task/* | wc -w"],
        "python3": ["/usr/bin/python3", "-c", probe],
        "ls": ["/bin/ls", "/"],
    }
    for name, command in commands.items():
        with_ours, without = (
            subprocess.run(command, env=env, capture_output=True, text=True, check=False) for env in (ours, plain)
        )
        same = (with_ours.stdout, with_ours.stderr, with_ours.returncode) == (
            without.stdout,
            without.stderr,
            without.returncode,
        )
        yield Row(
            f"{name} under the preload",
            "same output, threads and files",
            "the same" if same else f"{with_ours.stdout!r} {with_ours.stderr!r}",
            same,
        )
    for name, command in (("bash", ["/bin/bash", "-c", ":"]), ("ls", ["/bin/ls", "/dev/null"])):
        quiet = [os.open("/dev/null", os.O_WRONLY), os.dup(1)]
        os.dup2(quiet[0], 1)
        try:
            added = added_seconds(command, of_empty, ours, 3000 if settings.long else 1000)
        finally:
            os.dup2(quiet[1], 1)
            for descriptor in quiet:
                os.close(descriptor)
        yield Row(
            f"start of {name}",
            "at most 10 µs over an empty preload",
            f"adds {added * 1e6:.1f} µs",
            added <= 10e-6,
        )


def slice_that_cannot_be_attached(lab, _):
    """A slice directory that can't be attached: cuInit fails with error 802 and one line says why."""
    broken = {
        "is missing": lambda path: None,
        "is empty": lambda path: path.mkdir(),
        "holds garbage": lambda path: (path.mkdir(), [(path / f).write_bytes(b"x" * 4096) for f in ("limits", "state")]),
    }
    for i, (how, make) in enumerate(broken.items()):
        path = pathlib.Path(lab.directory / f"slice-{i}")
        make(path)
        # The runtime's name for it is the driver's number.
        result = lab.run(
            lab.sample("hog"), environment={"LD_PRELOAD": preload_of(lab), "CUSLICE_SLICE": str(path)}
        )
        ours = [line for line in result.errors.splitlines() if "cuslice" in line]
        yield Row(
            f"slice directory that {how}",
            f"error {NOT_READY}, one line that says why",
            f"status {result.status}; " + (" | ".join(result.errors.splitlines()) or "no line"),
            result.status != 0 and f"({NOT_READY})" in result.errors and len(ours) == 1,
        )


def broker_dies(lab, _):
    """The broker is killed with programs in two slices: limits hold, all go on, and a new broker takes over."""
    broker = start_broker(lab)
    terms = [Slice("20GB", compute=75, name="first"), Slice("10GiB", compute=25, name="second")]
    with lab.hold(terms[0]) as first, lab.hold(terms[1]) as second:
        busy = lab.sample("busy", "--seconds", 12)
        tenants = [first.start(busy), second.start(busy)]
        wait_until_busy(lab, tenants)
        time.sleep(1)
        for pid in broker.processes("cusliced"):
            os.kill(pid, signal.SIGKILL)
        broker.wait(10)
        time.sleep(1)

        before = lab.truth()
        hog = second.start(lab.sample("hog", "--hold", 0.5))
        hog.wait_for_line("HOLDING")
        held = sum(lab.use_of(tenant).used_bytes for tenant in (hog, tenants[1]))
        refused = hog.finish().json["apis"][0]
        received, _ = window(lab, tenants, before, lab.truth())
        unused = 10 * GIB - held
        yield Row(
            "broker killed: quota",
            "a hog is refused at 10 GiB to within 2 MiB",
            f"error {refused['error']}, {mib(unused)} left",
            refused["error"] == OUT_OF_MEMORY and 0 <= unused <= GRANULE,
        )
        yield Row(
            "broker killed: programs",
            "both go on receiving GPU time",
            " / ".join(percent(part) for part in received),
            all(part > 0.05 for part in received),
        )

        start_broker(lab)
        time.sleep(2)
        before = lab.truth()
        time.sleep(3)
        received, _ = window(lab, tenants, before, lab.truth())
        share = received[0] / sum(received)
        yield Row("new broker: shares", "75 % ± 3 points", percent(share), abs(share - 0.75) <= 0.03)
        truth = lab.truth()
        differences = [
            slice_use(lab, own.name) - lab.use_of(tenant, truth).used_bytes for own, tenant in zip(terms, tenants)
        ]
        yield Row(
            "new broker: accounts",
            "what the GPU says, to 2 MiB",
            " / ".join(mib(difference) for difference in differences),
            all(abs(difference) <= GRANULE for difference in differences),
        )
        for tenant in tenants:
            tenant.finish(60)
        left = [slice_use(lab, own.name) for own in terms]
        yield Row("new broker: programs", "end well, and leave nothing", " / ".join(map(mib, left)), not any(left))


def start_broker(lab):
    broker = lab.start([lab.program("cusliced"), "--run-dir", lab.run_directory])
    end = time.monotonic() + 10
    while lab.run([lab.program("cuslicectl"), "ls"]).status != 0:
        if not broker.running() or time.monotonic() > end:
            broker.kill()
            raise LabError(f"cusliced does not answer\n{broker.wait().describe()}")
        time.sleep(0.05)
    return broker
