# SPDX-License-Identifier: Apache-2.0
"""Claims about what sharing GPU time costs: a launch, a broker with nothing to do, a training loop."""

import importlib.util
import json
import pathlib
import shutil
import subprocess
import time

from . import loads
from .guest_claims import start_broker
from .lab import ROOT, Lab, LabError, Slice
from .memory_claims import clients_python
from .table import Row, percent

SLICES = 64
TRAINING = ROOT / "bench" / "torch_training.py"
TRAINING_SECONDS = 20


def launch_benchmark(lab):
    """What calls cost with and without us, on a driver that costs nothing: the benchmark's own JSON."""
    run = subprocess.run(
        [lab.program("launch_benchmark"), "--json"], capture_output=True, text=True, check=False, timeout=300
    )
    if run.returncode != 0:
        raise LabError(f"launch_benchmark: status {run.returncode}: {run.stderr}")
    return json.loads(run.stdout)


def fast_path_instructions(lab):
    """Of the longest launch function with an open gate, by disassembly. None without a build tree or objdump."""
    source = ROOT / "tests" / "gate" / "fast_path_test.py"
    table = lab.build / "generated" / "interpose" / "functions.inc"
    if not (source.exists() and table.exists() and shutil.which("objdump")):
        return None
    spec = importlib.util.spec_from_file_location("fast_path_test", source)
    fast_path = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fast_path)
    library = lab.build / "lib" / "libcuslice-cuda.so"
    paths = [fast_path.hit_path(fast_path.disassemble(library, name)) for name in fast_path.launch_functions(table)]
    return max(len([step for step in path if step[0] != "endbr64"]) for path in paths)


def cost_of_a_launch(lab, _):
    """cuLaunchKernel through an open gate and in a turn, and the instructions of the open gate."""
    added = launch_benchmark(lab)
    for what, field, bound in (
        ("cuLaunchKernel, gate open", "launch_added_ns", 2),
        ("cuLaunchKernel, in a turn", "launch_in_turn_added_ns", 60),
    ):
        yield Row(what, f"adds at most {bound} ns", f"adds {added[field]:.1f} ns", added[field] <= bound)
    instructions = fast_path_instructions(lab)
    if instructions is None:
        raise LabError("the open gate's instructions can't be counted: that needs a build tree and objdump")
    yield Row("open gate", "12 instructions", f"{instructions}", instructions <= 12)


def work_of(pid):
    """CPU seconds and voluntary waits of all threads of a process."""
    seconds, waits = 0.0, 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        seconds += int((task / "schedstat").read_text().split()[0]) * 1e-9
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                waits += int(line.split()[1])
    return seconds, waits


def idle_broker_work(lab, seconds):
    """Of a broker with 64 slices, each with a process that has a context and launches nothing: CPU time / wall time,
    and wake-ups per second."""
    broker = start_broker(lab)
    idle = lab.sample("request_loop", "--seconds", 1300, "--period-ms", 600_000, "--work-us", 100)
    tenants = [lab.start(idle, Slice("1GiB", compute=1, name=f"idle-{i}")) for i in range(SLICES)]
    end = time.monotonic() + 120
    while (slices := lab.slices()["slices"]) is not None:
        if sum(entry["gpus"][0]["used_bytes"] > 0 for entry in slices) == SLICES:
            break
        ended = next((tenant for tenant in tenants if not tenant.running()), None)
        if ended or time.monotonic() > end:
            why = f"\n{ended.wait().describe()}" if ended else ""
            raise LabError(f"{len(slices)} slices came up, not {SLICES}{why}")
        time.sleep(0.2)
    # What follows a start: memory is measured, contexts are found idle.
    time.sleep(5)
    (pid,) = broker.processes("cusliced")
    cpu, waits = work_of(pid)
    time.sleep(seconds)
    cpu_after, waits_after = work_of(pid)
    return (cpu_after - cpu) / seconds, (waits_after - waits) / seconds


def idle_broker(lab, settings):
    """The broker with 64 idle slices takes less than 0.1 % of a core."""
    used, wakes = idle_broker_work(lab, 30 if settings.long else 10)
    yield Row(
        "idle broker, 64 slices with a context each",
        "less than 0.1 % of a core",
        f"{percent(used, 3)}, {wakes:.1f} wake-ups per second",
        used < 0.001,
    )


def rates_together(ends):
    """Steps per second of each, in the time in which all made steps."""
    begin, end = max(each[0] for each in ends), min(each[-1] for each in ends)
    shared = [[at for at in each if begin <= at <= end] for each in ends]
    if end - begin < 0.5e9 * TRAINING_SECONDS or min(map(len, shared)) < 10:
        raise LabError("the two trained together for less than half the time, or made less than 10 steps")
    return [(len(each) - 1) * 1e9 / (each[-1] - each[0]) for each in shared]


def torch_training(lab, _):
    """An unmodified torch training loop in two slices of 70 and 30: steps per second as 70 to 30, to 2 points."""
    python = clients_python()
    if not python:
        raise LabError("torch is not here: run scripts/setup.sh --clients")
    # The GPU and not Python has to be the limit, as it is on a real one. The simulator's sets and copies are the host's
    # work, so there the model is small and its kernels are long.
    size = ("96", "16") if lab.simulated else ()
    with Lab(lab.build, simulate=lab.simulated, node_options=("--kernel-us", 500)) as training:
        terms = loads.pair_of(training, (70, 30))
        tenants = [training.start([python, TRAINING, str(TRAINING_SECONDS), *size], own) for own in terms]
        reports = [tenant.finish(240).json for tenant in tenants]
    rates = rates_together([report["step_end_ns"] for report in reports])
    share = rates[0] / sum(rates)
    yield Row(
        "torch training loop, 70/30",
        "steps per second 70 : 30 ± 2",
        f"{rates[0]:.1f} / {rates[1]:.1f} = {percent(share)}",
        abs(share - 0.70) <= 0.02,
    )
