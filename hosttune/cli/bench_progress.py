# SPDX-License-Identifier: Apache-2.0
"""How a benchmark goes, on stderr: bars on a terminal, a line for each event elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ..bench.client import Answer
from ..bench.plan import Configuration
from ..bench.run import Watch
from ..bench.statistics import Summary, words


class Lines:
    """One line for each event."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._k = self._n = 0

    def line(self, text: str) -> None:
        """Something happened."""
        click.echo(text, err=True)

    def begins(self, k: int, n: int, configuration: Configuration, requests: int) -> None:
        """A configuration begins."""
        self._k, self._n = k, n
        self.line("%d of %d  %s (%d requests)" % (k, n, configuration, requests))

    def answered(self, answer: Answer) -> None:
        """Too many for lines of their own."""

    def ended(self, configuration: Configuration, result: Mapping[str, Any]) -> None:
        """What came of it, and how long the rest may take."""
        self.line("%d of %d  %s%s" % (self._k, self._n, outcome(result), self._rest()))

    def _rest(self) -> str:
        if self._k == self._n:
            return ""
        left = (time.monotonic() - self._began) / self._k * (self._n - self._k)
        return "; about %s left" % duration(left)


class Bars:
    """A bar of configurations and one of requests, above them what came of each."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        text = TextColumn("{task.description}")
        columns = (text, BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
        self.progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
        self._all = self.progress.add_task("configurations", total=None, rate="")
        self._one = self.progress.add_task("", total=None, rate="", visible=False)
        self._tokens, self._began = 0, 0.0

    def line(self, text: str) -> None:
        """Above the bars."""
        self.progress.console.print(text, markup=False, highlight=False)

    def begins(self, k: int, n: int, configuration: Configuration, requests: int) -> None:
        """The bar of requests starts anew."""
        self._tokens, self._began = 0, time.monotonic()
        self.progress.update(self._all, total=n, completed=k - 1)
        self.progress.reset(self._one, description=str(configuration), total=requests, rate="", visible=True)

    def answered(self, answer: Answer) -> None:
        """One more request."""
        self._tokens += (answer.usage or {}).get("completion") or 0
        rate = self._tokens / max(time.monotonic() - self._began, 1e-3)
        self.progress.update(self._one, advance=1, rate="%.0f tokens/s" % rate)

    def ended(self, configuration: Configuration, result: Mapping[str, Any]) -> None:
        """What came of it stays above."""
        self.progress.update(self._all, advance=1)
        self.line("%s: %s" % (configuration, outcome(result)))


def outcome(result: Mapping[str, Any]) -> str:
    """valid: 3012 ± 96 tokens/s ..., or invalid and why."""
    if "figures" not in result:
        return "invalid: %s" % "; ".join(reason["text"] for reason in result["reasons"])
    output, ttft = (Summary(**result["figures"][name]) for name in ("output", "ttft"))
    return "valid: %s tokens/s, TTFT %s ms" % (words(output), words(ttft, 1000))


def duration(seconds: float) -> str:
    """ "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return "%d s" % round(seconds)
    return "%d min" % round(seconds / 60) if seconds < 5400 else "%.1f h" % (seconds / 3600)


@contextlib.contextmanager
def shown() -> Iterator[Watch]:
    """Bars while stderr is a terminal, lines else."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    bars = Bars()
    with bars.progress:
        yield bars
