# SPDX-License-Identifier: Apache-2.0
"""The figures of valid trials. Nothing here sees an invalid one: run.py asks validity.py first.

output   tokens/s of all streams: all tokens of the trial over the time from the first request to the last token
decode   tokens/s of one stream after its first token: (tokens - 1) / (last - first), mean of the trial's answers
ttft     seconds from the request to the first piece of text, mean of the trial's answers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from .client import Answer, Trial
from .statistics import summary

FIGURES = ("output", "decode", "ttft")


def of_trials(trials: Sequence[Trial]) -> dict[str, Any]:
    """{"output" | "decode" | "ttft": {n, mean, median, stdev}, "prompt_tokens": [..], "cached_tokens": [..]}.

    One value a trial: answers within a trial share it and are no independent measurements.
    """
    values: dict[str, list[float]] = {name: [] for name in FIGURES}
    for trial in trials:
        values["output"].append(_output(trial.answers))
        values["ttft"].append(fmean(_span(a.sent, a.first) for a in trial.answers))
        rates = [(_made(a) - 1) / _span(a.first, a.last) for a in trial.answers if _made(a) > 1]
        if rates:
            values["decode"].append(fmean(rates))
    out: dict[str, Any] = {name: asdict(found) for name in FIGURES if (found := summary(values[name])) is not None}
    answers = [answer for trial in trials for answer in trial.answers]
    out["prompt_tokens"] = sorted({(a.usage or {}).get("prompt") or 0 for a in answers})
    out["cached_tokens"] = sorted({(a.usage or {}).get("cached") or 0 for a in answers})
    return out


def _output(answers: Sequence[Answer]) -> float:
    begin = min(answer.sent for answer in answers if answer.sent is not None)
    end = max(answer.last for answer in answers if answer.last is not None)
    return sum(map(_made, answers)) / (end - begin)


def _made(answer: Answer) -> int:
    return (answer.usage or {}).get("completion") or 0


def _span(begin: float | None, end: float | None) -> float:
    assert begin is not None and end is not None  # validity.py has seen them
    return end - begin
