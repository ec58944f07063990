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


def ratio(value: Summary, baseline: Summary) -> float | None:
    """How many times the baseline's mean. None for n = 1 on either side: one trial tells nothing of a difference."""
    return value.mean / baseline.mean if value.n > 1 and baseline.n > 1 else None


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
