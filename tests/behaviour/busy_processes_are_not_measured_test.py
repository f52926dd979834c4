# SPDX-License-Identifier: Apache-2.0
"""`busy_processes_are_not_measured_test.py take|take-async`

A process that takes and frees without a pause is never charged less for its context than it takes, however often
the broker looks; and so it never gets more than its quota."""

import sys
import time

from verify.lab import GIB, MIB, Lab, Slice

QUOTA = 10 * GIB
CONTEXT = 500 * MIB  # on the simulated GPU
SECONDS = 6


def main():
    with Lab(simulate=True) as lab:
        program = lab.program("tests/busy_with_memory")
        taker = lab.start([program, sys.argv[1], SECONDS], Slice("10GiB", compute=50, name="taker"))
        other = lab.start([program, "contexts", SECONDS], Slice("10GiB", compute=50, name="other"))
        most, least_overhead, looks = 0, QUOTA, 0
        while taker.running():
            most = max(most, lab.use_of(taker).used_bytes)
            looks += 1
            for entry in lab.slices()["slices"]:
                gpu = entry["gpus"][0]
                if entry["id"] == "taker" and gpu["held_bytes"]:
                    least_overhead = min(least_overhead, gpu["overhead_bytes"])
            time.sleep(0.002)
        result = taker.finish().json
        other.finish()
    print(f"{looks} looks: at most {most / MIB:.1f} MiB; context charged with at least {least_overhead / MIB:.1f} MiB")
    print(result)
    fits = (QUOTA - CONTEXT) // (256 * MIB) * 256 * MIB
    if most > QUOTA or least_overhead < CONTEXT or (result["most_bytes"], result["least_bytes"]) != (fits, fits):
        sys.exit("not what 10 GiB and a context of 500 MiB allow")


if __name__ == "__main__":
    main()
