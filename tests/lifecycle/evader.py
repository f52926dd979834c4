#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A process of a slice that goes past it on purpose: evader.py WAY MIB. Says "holds", and stays until its stdin ends.

copy: by a copy of the driver under a name that is none of a driver's. namespace: by the driver itself, in a namespace of
dlmopen. deepbind: by the driver's name, to bind deeply. entry: attached, and past the hooks by the addresses in the
driver's file. scribble: attached, and strikes what it holds from the slice's ledger; then takes it again. Whatever the
driver answers is printed.
"""

import ctypes
import mmap
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

MIB = 1 << 20
LEDGER_AT, LINE_BYTES, SLOTS = 266752, 64, 2048  # of `state`
HELD_AT = 8
BYTES_MASK = (1 << 48) - 1
LM_ID_NEWLM = -1
RTLD_NOW = 2


def driver_file():
    return next(path for path in (pathlib.Path(part) / "libcuda.so.1"
                                  for part in os.environ["LD_LIBRARY_PATH"].split(":")) if path.exists()).resolve()


class Driver:
    """Functions of a driver, from whoever finds them."""

    def __init__(self, find):
        self.find = find

    def call(self, name, *arguments):
        result = self.find(name)(*arguments)
        print(f"{name} {result}", flush=True)
        return result

    def start(self):
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def take(self, mib):
        pointer = ctypes.c_uint64()
        return self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))


def copied():
    copy = pathlib.Path(tempfile.mkdtemp(dir=os.environ["CUSLICE_RUN_DIR"])) / "libquick.so"
    shutil.copy(driver_file(), copy)
    library = ctypes.CDLL(str(copy))
    return Driver(lambda name: library[name])


def in_namespace():
    libc = ctypes.CDLL(None)
    libc.dlmopen.restype = libc.dlsym.restype = ctypes.c_void_p
    library = libc.dlmopen(ctypes.c_long(LM_ID_NEWLM), str(driver_file()).encode(), RTLD_NOW)
    assert library, "dlmopen failed"
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)

    def find(name):
        function = prototype(libc.dlsym(ctypes.c_void_p(library), name.encode()))
        return lambda *arguments: function(*[ctypes.cast(each, ctypes.c_void_p) if not isinstance(each, (int, ctypes._SimpleCData))
                                             else each for each in arguments], *[0] * (3 - len(arguments)))

    return Driver(find)


def bound_deeply():
    library = ctypes.CDLL("libcuda.so.1", mode=RTLD_NOW | os.RTLD_DEEPBIND)
    return Driver(lambda name: library[name])


def by_entry():
    symbols = subprocess.run(["nm", "-D", "--defined-only", driver_file()], capture_output=True, text=True, check=True,
                             env={"PATH": os.environ["PATH"]}).stdout
    offsets = {line.split()[2].split("@")[0]: int(line.split()[0], 16) for line in symbols.splitlines()}
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    base = min(int(line.split("-")[0], 16) for line in maps if line.endswith(str(driver_file())))
    return Driver(lambda name: ctypes.CFUNCTYPE(ctypes.c_int)(base + offsets[name]))


def strike_out():
    with open(os.environ["CUSLICE_SLICE"] + "/state", "r+b") as file, mmap.mmap(file.fileno(), 0) as state:
        for slot in range(SLOTS):
            at = LEDGER_AT + slot * LINE_BYTES + HELD_AT
            held, = struct.unpack_from("<Q", state, at)
            struct.pack_into("<Q", state, at, held & ~BYTES_MASK)


def main():
    way, mib = sys.argv[1], int(sys.argv[2])
    hooked = ctypes.CDLL("libcuda.so.1") if way in ("entry", "scribble") else None
    if hooked:
        Driver(lambda name: hooked[name]).start()
    driver = {"copy": copied, "namespace": in_namespace, "deepbind": bound_deeply, "entry": by_entry,
              "scribble": lambda: Driver(lambda name: hooked[name])}[way]()
    if not hooked:
        driver.start()
    driver.take(mib)
    if way == "scribble":
        sys.stdin.readline()  # until the broker has seen it as it was
        strike_out()
        driver.take(mib)
    print("holds", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
