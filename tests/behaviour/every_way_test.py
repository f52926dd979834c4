# SPDX-License-Identifier: Apache-2.0
"""One row of the API matrix: every_way_test.py WAY

scripts/verify.sh vram prints the whole table; a way is named as `every_way` names it.
"""

import sys

from verify import vram_matrix
from verify.lab import Lab


def main():
    ways = [way for way in vram_matrix.WAYS if way.name == sys.argv[1]]
    assert ways, f"no way is called {sys.argv[1]}"
    with Lab(simulate=True) as lab:
        rows = list(vram_matrix.rows(lab, ways))
    for row in rows:
        print(f"{row.what}: {row.measured}")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
