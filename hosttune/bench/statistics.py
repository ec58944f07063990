# SPDX-License-Identifier: Apache-2.0
"""What trials come to. A single trial has no spread, so nothing is claimed of it."""

from __future__ import annotations

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
