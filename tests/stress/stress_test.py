# SPDX-License-Identifier: Apache-2.0
"""`stress_test.py CLAIM`: runs one claim of verify/stress_claims.py in its short form, however long things take; fails if a row does not hold."""

import argparse
import sys

from verify import stress_claims
from verify.lab import Lab

with Lab(simulate=True) as lab:
    rows = list(getattr(stress_claims, sys.argv[1])(lab, argparse.Namespace(long=False, timed=False)))
for row in rows:
    print(f"{row.verdict}  {row.what}: {row.measured} (bound: {row.bound})")
sys.exit(0 if rows and all(row.holds for row in rows) else 1)
