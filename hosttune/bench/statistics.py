# SPDX-License-Identifier: Apache-2.0
"""What trials come to. A single trial has no spread, so nothing is claimed of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """n values of one figure. stdev is the sample's (n - 1); None for n = 1."""

    n: int
    mean: float
    median: float
    stdev: float | None


def summary(values: Sequence[float]) -> Summary | None:
    """None without values: the mean of nothing is not 0."""
    if not values:
        return None
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Summary(len(values), statistics.fmean(values), statistics.median(values), spread)


@dataclass(frozen=True)
class Ratio:
    """How many times a baseline: of the means, with its 95 % interval. One that holds 1 shows no difference."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return "%.2f (%.2f to %.2f)" % (self.value, self.low, self.high)


def ratio(mine: Summary, baseline: Summary) -> Ratio | None:
    """None for n = 1 on either side: one trial tells nothing of a difference.

    Welch's interval on logarithms, sd / mean standing for the sd of a logarithm. It covers what varies between trials of
    one server process, not between two starts of it.
    """
    if mine.stdev is None or baseline.stdev is None:
        return None
    parts = [((s.stdev or 0) / s.mean) ** 2 / s.n for s in (mine, baseline)]
    variance, value = sum(parts), mine.mean / baseline.mean
    if variance == 0:
        return Ratio(value, value, value)
    freedom = variance**2 / sum(part**2 / (s.n - 1) for part, s in zip(parts, (mine, baseline), strict=True))
    factor = math.exp(_t(freedom) * math.sqrt(variance))
    return Ratio(value, value / factor, value * factor)


STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % quantiles of Student's t for 1 to 15 degrees of freedom."""


def _t(freedom: float) -> float:
    """The quantile of the next lower whole number of degrees, that of 15 from there on: never too narrow."""
    return STUDENT[min(max(int(freedom), 1), len(STUDENT)) - 1]


def words(found: Summary | None, scale: float = 1) -> str:
    """ "3012 ± 96", "3.69 ± 0.10", "3012 (n=1)", "–": both numbers to the decimals of the mean's third digit."""
    if found is None:
        return "–"
    digits = _decimals(scale * found.mean)
    mean = "%.*f" % (digits, scale * found.mean)
    return mean + (" (n=1)" if found.stdev is None else " ± %.*f" % (digits, scale * found.stdev))


def number(value: float) -> str:
    """Three significant digits at most, whole from 100 on: "0.0123", "2.5", "40", "5000"."""
    text = "%.*f" % (_decimals(value), value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _decimals(value: float) -> int:
    return max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
