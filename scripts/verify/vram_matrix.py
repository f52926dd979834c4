# SPDX-License-Identifier: Apache-2.0
"""The API matrix: each way that the driver has to take memory, in a slice, against what the GPU says."""

import dataclasses
import json
import os
import signal
import subprocess
import time

from .lab import GIB, MIB, LabError, Slice
from .memory_claims import seconds_until
from .table import Row, mib

QUOTA = 2 * GIB
OUT_OF_MEMORY = 2
SETTLED = 3.0  # seconds: when the broker has measured what the driver took unasked
BACK = 1.0  # seconds after a kill -9, to the look that finds everything back
PIECE = 64 * MIB


@dataclasses.dataclass
class Way:
    name: str
    what: str
    counted: bool = True
    # Bytes of the slice that may be left at the refusal: the size of what is asked for last.
    piece: int = PIECE
    # How many pieces an uncounted way takes: more than the slice has.
    pieces: int = 40
    # What one call may take beyond the quota, because only the driver knows how much it takes.
    unforeseen: int = 0


WAYS = (
    Way("linear", "cuMemAlloc"),
    Way("small", "cuMemAlloc, less than a granule", piece=4 * MIB, unforeseen=2 * MIB),
    Way("pitch", "cuMemAllocPitch"),
    Way("managed", "cuMemAllocManaged"),
    Way("host", "cuMemHostAlloc", counted=False),
    Way("registered", "cuMemHostRegister", counted=False),
    Way("array", "cuArrayCreate"),
    Way("array-3d", "cuArray3DCreate"),
    Way("mipmap", "cuMipmappedArrayCreate", piece=96 * MIB),
    Way("sparse", "cuMemMapArrayAsync: tiles keep memory"),
    Way("async", "cuMemAllocAsync"),
    Way("own-pool", "cuMemAllocFromPoolAsync"),
    Way("300-pools", "300 pools"),
    Way("graph", "cuGraphAddMemAllocNode, launched"),
    Way("captured", "cuMemAllocAsync captured, launched"),
    Way("physical", "cuMemCreate on the device"),
    Way("physical-host", "cuMemCreate on the host", counted=False),
    Way("physical-numa", "cuMemCreate on a NUMA node", counted=False),
    Way("mapped", "cuMemMap: a mapping keeps memory"),
    Way("multicast", "cuMulticastBindMem: keeps memory"),
    Way("ipc", "cuIpcOpenMemHandle: exporter pays"),
    Way("shareable", "cuMemImportFromShareableHandle: exporter pays"),
    Way("external", "cuImportExternalMemory: exporter pays"),
    Way("module", "cuModuleLoad, 64 MiB of variables", unforeseen=PIECE),
    Way("context", "contexts of one process", piece=600 * MIB),
    Way("green-context", "cuGreenCtxCreate", unforeseen=64 * MIB),
    Way("stack-limit", "cuCtxSetLimit: local memory", piece=300 * MIB),
    Way("printf-limit", "cuCtxSetLimit: printf buffer"),
    Way("heap-limit", "cuCtxSetLimit: heap"),
)


class Stopped:
    """A tenant that goes through READY, HOLDING and GIVEN, and waits at each for a line."""

    def __init__(self, lab, held, way):
        most = 100_000 if way.counted else way.pieces
        command = [lab.program("samples/every_way"), way.name, most]
        self.tenant = held.start(command, stdin=subprocess.PIPE)

    def reach(self, state):
        self.tenant.wait_for_line(state)
        line = next(line for line in self.tenant.output().splitlines() if line.startswith(state))
        return json.loads(line.removeprefix(state))

    def go_on(self):
        self.tenant.stdin.write("\n")
        self.tenant.stdin.flush()

    def kill(self):
        for pid in self.tenant.processes():
            os.kill(pid, signal.SIGKILL)
        self.tenant.wait()


class Books:
    """What the slice is charged, and what the GPU has lost since it was empty."""

    def __init__(self, lab, name):
        self._lab = lab
        self._name = name
        self._empty = lab.truth().used_bytes

    def charged(self):
        for entry in self._lab.slices()["slices"]:
            if entry["id"] == self._name:
                return entry["gpus"][0]["used_bytes"]
        raise LabError(f"cuslicectl ls does not show the slice '{self._name}'")

    def true(self):
        return self._lab.truth().used_bytes - self._empty

    def agree(self):
        return self.charged() == self.true()


def seconds_to_look(holds, limit):
    """How long until a look begins that finds it so: a look starts two programs, and their time is not counted."""
    begin = time.monotonic()
    while (look := time.monotonic()) - begin < limit:
        if holds():
            return look - begin
    return None


def cells(lab, held, books, way):
    """The four cells of a way, and what to say of them."""
    tenant = Stopped(lab, held, way)
    tenant.reach("READY")
    seconds_until(books.agree, SETTLED)
    before = books.true()
    tenant.go_on()
    result = tenant.reach("HOLDING")
    equal = seconds_until(books.agree, SETTLED) is not None
    holding, charged = books.true(), books.charged()
    if way.counted:
        refused = result["error"] == OUT_OF_MEMORY and 0 <= QUOTA + way.unforeseen - holding
        refused = refused and QUOTA - holding < way.piece
    else:
        refused = result["error"] == 0 and result["pieces"] == way.pieces and holding == before
    tenant.go_on()
    tenant.reach("GIVEN")
    freed = seconds_until(lambda: books.true() <= before and books.agree(), SETTLED) is not None
    after = books.true()
    tenant.go_on()
    succeeded = tenant.tenant.wait().succeeded
    gone = seconds_until(lambda: books.true() == 0 and books.charged() == 0, SETTLED) is not None

    tenant = Stopped(lab, held, way)
    tenant.reach("READY")
    tenant.go_on()
    tenant.reach("HOLDING")
    tenant.kill()
    back = seconds_to_look(lambda: books.true() == 0 and books.charged() == 0, 5.0)
    killed = back is not None and back <= BACK
    said = (
        f"{result['pieces']} pieces, error {result['error']}; {mib(holding)} held, {mib(charged)} charged; "
        f"{mib(before)} before, {mib(after)} after freeing; "
        + ("not back 5 s after kill -9" if back is None else f"back {back:.2f} s after kill -9")
    )
    return (refused, freed and succeeded and gone, killed, equal), said


def rows(lab, ways):
    """A row for each of the ways, all in one slice that nobody else uses."""
    with lab.hold(Slice("2GiB", compute=50, name="matrix")) as held:
        books = Books(lab, "matrix")
        for way in ways:
            marks, said = cells(lab, held, books, way)
            names = ("refused at quota" if way.counted else "not charged", "back on free", "back on kill -9", "equals truth")
            yield Row(
                way.what,
                "all yes",
                "; ".join(f"{name}: {'yes' if mark else 'NO'}" for name, mark in zip(names, marks)) + f" ({said})",
                all(marks),
            )


def api_matrix(lab, _):
    """Each way to take memory is refused at the quota, given back by a free and by kill -9, and equals the GPU's truth.

    Memory of the host is taken beyond the quota and never charged."""
    yield from rows(lab, WAYS)
