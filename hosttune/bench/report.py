# SPDX-License-Identifier: Apache-2.0
"""What was measured, under which circumstances, and what was invalid and why: as Markdown and as one HTML page."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from .. import __version__
from ..core.model import Refused
from .chart import Bar, bars, highest
from .compare import Comparison, compare, groups
from .plan import Configuration, Plan, restore
from .results import INVALID, VALID, Results
from .statistics import Summary, words


@dataclass(frozen=True)
class Row:
    """One configuration of the plan and its result, None when it was not measured."""

    configuration: Configuration
    result: Mapping[str, Any] | None

    @property
    def status(self) -> str:
        """valid, invalid, or not measured."""
        return str(self.result["status"]) if self.result else "not measured"

    @property
    def reasons(self) -> list[Mapping[str, Any]]:
        """Why it is invalid."""
        return list(self.result["reasons"]) if self.result else []

    @property
    def flags(self) -> list[str]:
        """What a reader must know although it is valid."""
        return list(self.result["flags"]) if self.result else []

    def figure(self, name: str) -> Summary | None:
        """output, decode or ttft; None without a valid result."""
        found = self.result["figures"].get(name) if self.result and self.status == VALID else None
        return Summary(**found) if found else None

    @property
    def label(self) -> str:
        """Short, for a chart."""
        c = self.configuration
        return "%s · %d tokens · %d at once" % (c.prompt, c.max_tokens, c.concurrency)


@dataclass(frozen=True)
class Group:
    """Rows of equal circumstances. name: A, B ..; facts: what they were; own: what only this group has that way."""

    name: str
    facts: Mapping[str, str]
    keys: tuple[str, ...]
    began: str
    ended: str
    moments: Mapping[str, str]


@dataclass(frozen=True)
class Bench:
    """All that a report shows."""

    plan: Plan
    model: str
    rows: tuple[Row, ...]
    groups: tuple[Group, ...]
    differing: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    versions: str

    @property
    def beware(self) -> str:
        """What to know of rows with different letters; "" when there is one letter."""
        if len(self.groups) < 2:
            return ""
        varied = ["engine: " + name for name in self.plan.vary]
        if all(key in varied for key in self.differing):
            return "Arms differ in what the plan varies: %s." % ", ".join(self.plan.vary)
        return "Rows of different letters were measured under different circumstances: do not compare them."

    def count(self, status: str) -> int:
        """How many rows have a status."""
        return sum(row.status == status for row in self.rows)

    @property
    def verdict(self) -> str:
        """One sentence."""
        n, valid, invalid = len(self.rows), self.count(VALID), self.count(INVALID)
        if valid == n:
            return "All %d configurations are valid." % n if n > 1 else "The one configuration is valid."
        missing = n - valid - invalid
        parts = [
            "%d valid" % valid,
            "%d invalid" % invalid if invalid else "",
            "%d not measured" % missing if missing else "",
        ]
        return "%d configurations: %s." % (n, ", ".join(part for part in parts if part))


def gather(results: Results) -> Bench:
    """Everything in a results directory. Refused for a file that is no result of its plan."""
    try:
        plan = restore(results.manifest["plan"])
    except (KeyError, TypeError, AttributeError, ValueError):
        raise Refused("its plan cannot be read", str(results.folder), "was it written by a newer hosttune?")
    rows = tuple(Row(c, results.read(c.key)) for c in plan.configurations)
    found = [row.result for row in rows if row.result]
    parted = [
        Group(chr(ord("A") + n), facts, tuple(keys), *_span(found, keys), _moments(found, keys))
        for n, (facts, keys) in enumerate(groups(found))
    ]
    every = dict.fromkeys(key for group in parted for key in group.facts)
    differing = tuple(key for key in every if len({group.facts.get(key) for group in parted}) > 1)
    versions = sorted({", ".join("%s %s" % pair for pair in result["versions"].items()) for result in found})
    by_key = {row.configuration.key: row.result for row in rows if row.result}
    compared = tuple(compare(plan, by_key))
    return Bench(plan, str(results.manifest["model"]), rows, tuple(parted), differing, compared, "; ".join(versions))


def _span(found: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> tuple[str, str]:
    mine = [result for result in found if result["key"] in keys]
    return when(min(r["started"] for r in mine)), when(max(r["finished"] for r in mine))


def _moments(found: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, str]:
    out: dict[str, list[str]] = {}
    for result in found:
        if result["key"] in keys:
            for key, value in (result["host"].get("moment") or {}).items():
                if value not in out.setdefault(key, []):
                    out[key].append(str(value))
    return {key: values[0] if len(values) == 1 else "%s … %s" % (values[0], values[-1]) for key, values in out.items()}


def when(seconds: float) -> str:
    """A moment in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def markdown(bench: Bench) -> str:
    """The report as Markdown, for a terminal, a pull request or a wiki."""
    plan = bench.plan
    out = ["# Benchmark %s: %s" % (plan.name, bench.model), "", bench.verdict, ""]
    head = (
        "arm",
        "prompt",
        "tokens",
        "at once",
        "output tokens/s",
        "decode tokens/s a stream",
        "TTFT ms",
        "n",
        "where",
        "",
    )
    out += [_cells(head), "|" + " --- |" * len(head)]
    out += [_cells(_row(bench, row)) for row in bench.rows]
    out += [
        "",
        "Mean ± standard deviation (n - 1) over trials; n = 1 supports no comparison. " + METHOD % _method(plan),
    ]
    wrong = [row for row in bench.rows if row.reasons]
    if wrong:
        out += ["", "## Invalid", ""]
        out += ["- %s: %s" % (row.configuration, "; ".join(_line(r) for r in row.reasons)) for row in wrong]
    flagged = flags(bench)
    if flagged:
        out += ["", "## To know", ""] + ["- %s (%s)" % (text, where) for text, where in flagged]
    for comparison in bench.comparisons:
        out += ["", "## %s against %s" % (comparison.arm, comparison.baseline), "", *_comparison(comparison)]
    out += ["", "## Circumstances", ""]
    if bench.beware:
        out += [bench.beware, ""]
    names = [group.name for group in bench.groups]
    out += [_cells(["", *names]), "|" + " --- |" * (len(names) + 1)] if names else ["Nothing was measured."]
    for key, values in circumstance_rows(bench):
        out.append(_cells([("**%s**" if key in bench.differing else "%s") % key, *values]))
    return "\n".join(out) + "\n"


METHOD = (
    "Output: all tokens of a trial over the time from its first request to its last token. Decode: tokens after the first over "
    "the time from first to last text. %s"
)


RATIO = (
    "Ratio of means with its 95 % interval; one that holds 1 shows no difference. It covers trials of one server process: two "
    "starts of the same engine differ more."
)


def _method(plan: Plan) -> str:
    exact = "exactly as long as asked" if plan.ignore_eos else "at most as long as asked"
    said = (_many(plan.trials, "trial"), _many(plan.warm_up, "warm-up round"), _many(plan.rounds, "request"), exact)
    return "%s after %s, %s a stream, answers %s, temperature 0, every prompt new to the cache." % said


def _many(n: int, what: str) -> str:
    return "%d %s%s" % (n, what, "" if n == 1 else "s")


def _row(bench: Bench, row: Row) -> list[str]:
    c, output = row.configuration, row.figure("output")
    figures = [
        words(output),
        words(row.figure("decode")),
        words(row.figure("ttft"), 1000),
        str(output.n) if output else "",
    ]
    where = next((group.name for group in bench.groups if c.key in group.keys), "")
    return [c.arm, c.prompt, str(c.max_tokens), str(c.concurrency), *figures, where, "" if output else row.status]


def _comparison(comparison: Comparison) -> list[str]:
    if comparison.differs:
        return ["Not compared, because the circumstances differ:", ""] + ["- " + text for text in comparison.differs]
    head = ("prompt", "tokens", "at once", comparison.arm, comparison.baseline, "ratio")
    out = [_cells(head), "|" + " --- |" * len(head)]
    for r in comparison.rows:
        value = "no claim from one trial" if r.ratio is None else str(r.ratio)
        out.append(_cells([r.prompt, str(r.max_tokens), str(r.concurrency), words(r.value), words(r.baseline), value]))
    out += ["", RATIO]
    if comparison.missing:
        out += ["", "%d configurations have no valid result on both sides." % comparison.missing]
    return out


def flags(bench: Bench) -> list[tuple[str, str]]:
    """[(what a reader must know, for which rows)]."""
    out: dict[str, list[str]] = {}
    for row in bench.rows:
        for text in row.flags:
            out.setdefault(text, []).append(row.configuration.key)
    everything = sum(row.result is not None for row in bench.rows)
    return [(text, "all" if len(keys) == everything else ", ".join(keys)) for text, keys in out.items()]


def circumstance_rows(bench: Bench) -> list[tuple[str, list[str]]]:
    """[(what, its value in each group)], what differs first."""
    every = dict.fromkeys(key for group in bench.groups for key in group.facts)
    moments = dict.fromkeys(key for group in bench.groups for key in group.moments)
    ordered = [*bench.differing, *(key for key in every if key not in bench.differing)]
    out = [(key, [group.facts.get(key, "–") for group in bench.groups]) for key in ordered]
    out += [(key, [group.moments.get(key, "–") for group in bench.groups]) for key in moments]
    if bench.groups:
        out.append(("measured", ["%s to %s" % (group.began, group.ended) for group in bench.groups]))
        out.append(("rows", [str(len(group.keys)) for group in bench.groups]))
        out.append(("tools", [bench.versions] * len(bench.groups)))
    return out


def _line(reason: Mapping[str, Any]) -> str:
    return "%s %s" % (reason["finding"], reason["text"])


def _cells(cells: Sequence[str]) -> str:
    return "| %s |" % " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells)


def html(bench: Bench) -> str:
    """One self-contained page: its style, charts and data are inside, and it loads nothing."""
    from jinja2 import Environment, StrictUndefined

    source = (files("hosttune.data") / "templates" / "report.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(words=words)
    data = [_without_pieces(row.result) for row in bench.rows if row.result]
    embedded = json.dumps({"plan": bench.plan.as_dict(), "results": data}).replace("<", "\\u003c")
    return environment.from_string(source).render(
        bench=bench,
        charts=[_chart(bench, arm) for arm in bench.plan.arms],
        circumstances=circumstance_rows(bench),
        embedded=embedded,
        flags=flags(bench),
        method=METHOD % _method(bench.plan),
        ratio=RATIO,
        version=__version__,
    )


def _chart(bench: Bench, arm: str) -> dict[str, str]:
    """Both charts of an arm, on the scale of all arms: a longer bar is a larger figure all over the page."""
    out = {"arm": arm}
    for name, unit, scale in (("output", "output tokens/s, all streams", 1), ("ttft", "time to first token, ms", 1000)):
        every = [Bar(row.label, row.figure(name), row.status) for row in bench.rows]
        mine = [bar for bar, row in zip(every, bench.rows, strict=True) if row.configuration.arm == arm]
        out[name] = bars(mine, unit, scale, highest(every, scale))
    return out


def _without_pieces(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without the time of each piece: that is most of its bytes, and stays in its file."""
    out: dict[str, Any] = json.loads(json.dumps(result))
    for trial in [*out["trials"], *([out["warm_up"]] if out["warm_up"] else [])]:
        for answer in trial["answers"]:
            del answer["pieces"]
    return out
