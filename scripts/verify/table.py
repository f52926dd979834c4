# SPDX-License-Identifier: Apache-2.0
"""Claims and how they came out: one row each, as a table for people or as JSON."""

import dataclasses
import textwrap


@dataclasses.dataclass
class Row:
    """One thing that must be seen. `holds` is None where it could not be measured; that counts as not held."""

    what: str
    bound: str
    measured: str
    holds: bool | None

    @property
    def verdict(self):
        return {True: "ok", False: "FAIL", None: "NOT MEASURED"}[self.holds]

    def as_json(self):
        return {"what": self.what, "bound": self.bound, "measured": self.measured, "verdict": self.verdict}


def percent(fraction, digits=1):
    return f"{100 * fraction:.{digits}f} %"


def size(count):
    """Bytes in decimal GB, exact to the MB: what a person compares with `30GB`."""
    return f"{count / 1e9:.3f} GB"


def mib(count):
    return f"{count / (1 << 20):.1f} MiB"


def layout(heads, rows, widths):
    """A plain table: cells are wrapped to the widths given, so that no line passes their sum."""
    lines = []

    def put(cells):
        wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths)]
        for i in range(max(map(len, wrapped))):
            line = (part[i] if i < len(part) else "" for part in wrapped)
            lines.append("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())

    put(heads)
    lines.append("  ".join("-" * width for width in widths))
    for cells in rows:
        put(cells)
    return "\n".join(lines)


def rows_as_table(rows):
    return layout(
        ("what", "bound", "measured", "verdict"),
        [(row.what, row.bound, row.measured, row.verdict) for row in rows],
        (32, 24, 26, 12),
    )
