# SPDX-License-Identifier: Apache-2.0
"""`scripts/verify.sh SUITE`: runs a suite's claims and prints how each came out."""

import argparse
import functools
import importlib
import inspect
import json
import pathlib
import sys

from . import table
from .lab import Lab, LabError
from .table import Row

# The simulated GPU that a suite is measured on, if it doesn't say otherwise.
MODELS = {"h100": "simulated H100"}


def suites():
    here = pathlib.Path(__file__).parent
    return sorted(path.stem.removeprefix("suite_") for path in here.glob("suite_*.py"))


def options():
    parser = argparse.ArgumentParser(
        prog="scripts/verify.sh",
        description="Measures again what we claim. Exit status 0 only if every claim of the suite holds.",
    )
    parser.add_argument("suite", choices=suites(), help="which claims")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--long", action="store_true", help="measure each rate over 30 s instead of 10 s")
    parser.add_argument("--only", metavar="WORD", help="only the claims with this in their name")
    parser.add_argument("--list", action="store_true", help="print the claims' names and measure nothing")
    parser.add_argument("--simulated", action="store_true", help="use the simulated GPU even if there is a real one")
    parser.set_defaults(timed=True)
    return parser.parse_args()


def measure(claim, new_lab, settings):
    """The rows of one claim, on a GPU of its own. What can't be measured is a row too."""
    try:
        with new_lab() as lab:
            yield from claim(lab, settings)
    except LabError as error:
        yield Row(claim.__name__.replace("_", " "), inspect.getdoc(claim).splitlines()[0], str(error), None)


def main():
    chosen = options()
    suite = importlib.import_module(f".suite_{chosen.suite}", __package__)
    claims = suite.CLAIMS
    if chosen.only:
        claims = [claim for claim in claims if chosen.only in claim.__name__]
    if chosen.list:
        for claim in claims:
            print(f"{claim.__name__}: {inspect.getdoc(claim).splitlines()[0]}")
        return 0
    if not claims:
        print(f"verify: error: no claim has '{chosen.only}' in its name; see --list", file=sys.stderr)
        return 2

    simulate = True if chosen.simulated else None
    with Lab(simulate=simulate) as lab:
        simulated, gpu = lab.simulated, lab.gpu_name
    models = getattr(suite, "MODELS", MODELS) if simulated else {None: gpu}
    if simulated:
        gpu = ", ".join(models.values())
    on_any = getattr(suite, "ON_ANY_GPU", ())
    rows = []
    for i, (model, name) in enumerate(models.items()):
        for claim in (claim for claim in claims if i == 0 or claim not in on_any):
            print(f"verify: {claim.__name__} ({name})", file=sys.stderr, flush=True)
            for row in measure(claim, functools.partial(Lab, simulate=simulate, gpu=model), chosen):
                if len(models) > 1 and claim not in on_any:
                    row.what = f"{name}: {row.what}"
                print(f"  {row.verdict:12}  {row.what}: {row.measured}", file=sys.stderr, flush=True)
                rows.append(row)
    held = all(row.holds is True for row in rows)
    if chosen.json:
        result = {"suite": chosen.suite, "gpu": gpu, "held": held, "rows": [row.as_json() for row in rows]}
        print(json.dumps(result, indent=1))
    else:
        print(f"\nverify {chosen.suite}, GPU: {gpu}\n\n{table.rows_as_table(rows)}\n")
        print("All claims hold." if held else f"{sum(row.holds is not True for row in rows)} of {len(rows)} do not hold.")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
