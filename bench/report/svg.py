# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG: lines over two linear axes. No more than the report needs, and nothing to install."""

import html
import math

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 168, 40, 48
# Told apart by people who don't see all colours (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")


def ticks(low, high, about=6):
    """Round values between the two."""
    span = max(high - low, 1e-12)
    step = 10 ** math.floor(math.log10(span / about))
    step = next(step * factor for factor in (1, 2, 5, 10, 20) if span / (step * factor) <= about)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def lines(title, x_label, y_label, series, x_range=None, y_range=None, levels=()):
    """A plot as text. `series`: name -> points (x, y); `levels`: (name, y) of dashed horizontal lines."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points] + [y for _, y in levels]
    if not xs:
        raise ValueError(f"'{title}': nothing to plot")
    x_low, x_high = x_range or (min(xs), max(xs))
    y_low, y_high = y_range or (min(0, *ys), max(ys) * 1.05)

    def x_at(x):
        return LEFT + (x - x_low) / max(x_high - x_low, 1e-12) * (WIDTH - LEFT - RIGHT)

    def y_at(y):
        return HEIGHT - BOTTOM - (y - y_low) / max(y_high - y_low, 1e-12) * (HEIGHT - TOP - BOTTOM)

    def text(x, y, words, anchor="middle", more=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(words)}</text>'

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 22, title, "start", ' font-size="15" font-weight="bold"'),
    ]
    for x in ticks(x_low, x_high):
        out.append(f'<line x1="{x_at(x):.1f}" x2="{x_at(x):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(text(x_at(x), HEIGHT - BOTTOM + 16, f"{x:g}"))
    for y in ticks(y_low, y_high):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_at(y):.1f}" y2="{y_at(y):.1f}" stroke="#ddd"/>')
        out.append(text(LEFT - 6, y_at(y) + 4, f"{y:g}", "end"))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(text(18, middle, y_label, more=f' transform="rotate(-90 18 {middle:.1f})"'))
    for name, y in levels:
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_at(y):.1f}" y2="{y_at(y):.1f}" '
            'stroke="#555" stroke-dasharray="5 4"/>'
        )
        out.append(text(WIDTH - RIGHT + 6, y_at(y) + 4, name, "start", ' fill="#555"'))
    out.append(
        f'<clipPath id="area"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath>'
    )
    for i, (name, points) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
        out.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" clip-path="url(#area)"/>'
        )
        out.append(text(WIDTH - RIGHT + 6, HEIGHT - BOTTOM - 16 * (len(series) - i), name, "start", f' fill="{colour}"'))
    return "\n".join([*out, "</svg>", ""])


def distribution(values):
    """Points (value, part of all that are no larger): the steps of the cumulative distribution, at most 500."""
    ordered = sorted(values)
    count = len(ordered)
    picked = range(count) if count <= 500 else sorted({round(i * (count - 1) / 499) for i in range(500)})
    return [(ordered[i], (i + 1) / count) for i in picked]
