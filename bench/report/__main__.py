# SPDX-License-Identifier: Apache-2.0
"""`bench/run.sh`: measures, and writes report.json, report.txt and the plots."""

import argparse
import dataclasses
import inspect
import json
import pathlib
import platform
import sys
import time

from verify.lab import Lab, LabError
from verify.table import layout

from .metrics import BY_ID
from .sections import SECTIONS


@dataclasses.dataclass
class Settings:
    """What the sections are told."""

    quick: bool
    seconds: float  # how long a rate is measured
    out: pathlib.Path
    plots: list = dataclasses.field(default_factory=list)

    def plot(self, name, text):
        (self.out / f"{name}.svg").write_text(text, encoding="utf-8")
        self.plots.append(f"{name}.svg")


def options():
    parser = argparse.ArgumentParser(
        prog="bench/run.sh",
        description="Runs the benchmarks on this machine's GPU, else on the simulated one, and writes one report.",
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench-report"), help="folder (bench-report)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs: a look, not a measurement")
    parser.add_argument("--section", action="append", choices=[s.__name__ for s in SECTIONS], help="only these")
    parser.add_argument("--simulated", action="store_true", help="use the simulated GPU even if there is a real one")
    parser.add_argument("--gpu", default="h100", help="which GPU is simulated; `simgpu list` shows them (h100)")
    return parser.parse_args()


def as_text(report):
    where = report["gpu"] + (": every figure below is simulated" if report["simulated"] else "")
    out = [f"cuslice benchmarks, {where}", f"{report['date']}, {report['host']}", ""]
    for section in report["sections"]:
        rows = [
            (
                figure["id"],
                figure["name"] + (f": {figure['of']}" if figure["of"] else ""),
                f"{figure['value']:.4g}",
                figure["unit"],
            )
            for figure in section["figures"]
        ]
        out += [f"{section['name'].replace('_', ' ')}: {section['about']}", ""]
        out += [layout(("id", "what", "value", "unit"), rows, (8, 72, 10, 12)), ""]
        if section["error"]:
            out += [f"not all was measured: {section['error']}", ""]
    used = sorted({figure["id"] for section in report["sections"] for figure in section["figures"]})
    definitions = [(i, BY_ID[i].definition, BY_ID[i].program) for i in used]
    out += ["definitions", "", layout(("id", "definition", "program"), definitions, (8, 76, 18))]
    out += ["", "plots: " + ", ".join(report["plots"]), ""]
    return "\n".join(out)


def measure(section, new_lab, settings):
    """A section's figures, on a GPU of its own. An error ends the section and is part of the report."""
    figures, error = [], None
    print(f"bench: {section.__name__}", file=sys.stderr, flush=True)
    try:
        with new_lab() as lab:
            for figure in section(lab, settings):
                line = f"  {figure.id:8} {figure.value:10.4g} {BY_ID[figure.id].unit:6} {figure.of}"
                print(line, file=sys.stderr, flush=True)
                figures.append(figure.as_json())
    except LabError as problem:
        error = str(problem)
        print(f"  error: {error}", file=sys.stderr, flush=True)
    return {"name": section.__name__, "about": inspect.getdoc(section), "figures": figures, "error": error}


def main():
    chosen = options()
    chosen.out.mkdir(parents=True, exist_ok=True)
    settings = Settings(chosen.quick, 2 if chosen.quick else 10, chosen.out)

    def new_lab():
        return Lab(simulate=True if chosen.simulated else None, gpu=chosen.gpu)

    try:
        with new_lab() as lab:
            gpu, simulated = (f"simulated {chosen.gpu}", True) if lab.simulated else (lab.gpu_name, False)
    except LabError as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 1
    report = {
        "gpu": gpu,
        "simulated": simulated,
        "quick": chosen.quick,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "host": f"{platform.machine()}, Linux {platform.release()}",
        "sections": [
            measure(section, new_lab, settings)
            for section in SECTIONS
            if not chosen.section or section.__name__ in chosen.section
        ],
    }
    report["plots"] = settings.plots
    (chosen.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text = as_text(report)
    (chosen.out / "report.txt").write_text(text, encoding="utf-8")
    print(text)
    return 1 if any(section["error"] for section in report["sections"]) else 0


if __name__ == "__main__":
    sys.exit(main())
