# SPDX-License-Identifier: Apache-2.0
"""`transparency_test.py PROGRAM`: a program prints the same with no preload, with the preload and no slice, and in a
slice that it does not fill."""

import re
import sys

from verify.guest_claims import preload_of
from verify.lab import Lab, Slice


def main():
    program = sys.argv[1]
    with Lab(simulate=True) as lab:
        command = [lab.program(f"samples/{program}")]
        plain = lab.run(command)
        preloaded = lab.run(command, environment={"LD_PRELOAD": preload_of(lab)})
        in_slice = lab.run(command, Slice("40GB", compute=50))
    for how, result in (("plain", plain), ("preloaded without a slice", preloaded), ("in a slice", in_slice)):
        # In a slice it asks once for more than that: the one thing about which we say a line.
        errors = result.errors
        if result is in_slice:
            errors = "".join(line for line in errors.splitlines(True) if not re.match("cuslice: .* refused: ", line))
        if not result.succeeded or (result.output, errors) != (plain.output, plain.errors):
            sys.exit(f"{program}, {how}:\n{result.describe()}--- expected\n{plain.describe()}")
    print(plain.output, end="")


if __name__ == "__main__":
    main()
