# SPDX-License-Identifier: Apache-2.0
"""Bars with their spread as inline SVG. Colours are CSS variables, so that the page's light or dark scheme decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from .statistics import Summary, number, words

WIDTH, LABEL, VALUE, ROW, BAR, TOP = 800, 250, 130, 26, 14, 8


@dataclass(frozen=True)
class Bar:
    """One row. summary None: no bar, `note` says why."""

    label: str
    summary: Summary | None
    note: str = ""


def highest(rows: Sequence[Bar], scale: float = 1) -> float:
    """Where the longest bar ends, its spread included."""
    return max((scale * (row.summary.mean + (row.summary.stdev or 0)) for row in rows if row.summary), default=0)


def bars(rows: Sequence[Bar], unit: str, scale: float = 1, end: float = 0) -> str:
    """An SVG of horizontal bars from 0, error bars of one standard deviation.

    scale: 1000 for seconds in milliseconds. end: what the axis reaches at least, for charts of one scale.
    """
    end = max(end, highest(rows, scale))
    step = _step(end)
    top = max(step, math.ceil(end / step - 1e-9) * step)
    plot, height = WIDTH - LABEL - VALUE, TOP + ROW * len(rows)

    def x(value: float) -> float:
        return round(LABEL + plot * value / top, 1)

    out = ['<svg viewBox="0 0 %d %d" role="img" aria-label="%s">' % (WIDTH, height + 40, escape(unit))]
    for n in range(int(round(top / step)) + 1):
        at = x(n * step)
        out.append('<line class="grid" x1="%s" x2="%s" y1="%d" y2="%d"/>' % (at, at, TOP, height))
        out.append(
            '<text class="tick" x="%s" y="%d" text-anchor="middle">%s</text>' % (at, height + 16, number(n * step))
        )
    out.append(
        '<text class="tick" x="%d" y="%d" text-anchor="middle">%s</text>'
        % (LABEL + plot / 2, height + 34, escape(unit))
    )
    for n, row in enumerate(rows):
        out += _row(row, TOP + n * ROW, x, scale)
    return "\n".join([*out, "</svg>"])


def _row(row: Bar, y: float, x: Callable[[float], float], scale: float) -> list[str]:
    middle = y + ROW / 2
    out = [
        '<text class="label" x="%d" y="%s" text-anchor="end">%s</text>' % (LABEL - 10, middle + 4, escape(row.label))
    ]
    if row.summary is None:
        return [*out, '<text class="none" x="%d" y="%s">%s</text>' % (LABEL + 6, middle + 4, escape(row.note))]
    mean, spread = scale * row.summary.mean, scale * (row.summary.stdev or 0)
    out.append(
        '<rect class="bar" x="%d" y="%s" width="%s" height="%d" rx="2"/>'
        % (LABEL, middle - BAR / 2, round(x(mean) - LABEL, 1), BAR)
    )
    if spread:
        low, high = x(max(0, mean - spread)), x(mean + spread)
        out.append('<line class="spread" x1="%s" x2="%s" y1="%s" y2="%s"/>' % (low, high, middle, middle))
        out += [
            '<line class="spread" x1="%s" x2="%s" y1="%s" y2="%s"/>' % (at, at, middle - 4, middle + 4)
            for at in (low, high)
        ]
    text = words(row.summary, scale)
    out.append('<text class="value" x="%s" y="%s">%s</text>' % (x(mean + spread) + 8, middle + 4, text))
    return out


def _step(end: float) -> float:
    """A round distance of 4 to 8 grid lines."""
    if end <= 0:
        return 1
    rough = end / 5
    magnitude = 10 ** math.floor(math.log10(rough))
    return float(next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough - 1e-12))
