# SPDX-License-Identifier: Apache-2.0
"""A Report for a person: the cause first, then what else is wrong, then one line for all that is well.

A line is: mark, id, subject, what was seen and wanted. Below it the evidence, then one command that can be pasted, where
to run it and what it costs; or, where a person has to decide, what to look at and what follows from it.
Meaning never rests on colour alone.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import click

from ..core.model import ERROR, FAIL, LOOK, OK, SKIP, WARN, Action, Finding, Report, Step, counts, first_cause
from .visible import visible, visible_report

MARKS = {OK: "✓", WARN: "!", FAIL: "✗", SKIP: "–", ERROR: "?"}
ASCII_MARKS = {OK: "ok", WARN: "!!", FAIL: "XX", SKIP: "--", ERROR: "??"}
COLOURS = {OK: "green", WARN: "yellow", FAIL: "red", SKIP: "bright_black", ERROR: "magenta"}
ORDER = {FAIL: 0, ERROR: 1, WARN: 2, SKIP: 3, OK: 4}

Style = Callable[..., str]


def _plain(text: str, **_: object) -> str:
    return text


def render(report: Report, colour: bool = False, ascii_only: bool = False, verbose: bool = False) -> str:
    """The whole report, ending in a line feed. verbose: also what is well and what does not apply."""
    report = visible_report(report)
    style: Style = click.style if colour else _plain
    marks = ASCII_MARKS if ascii_only else MARKS
    lines = list(_lines(report, style, marks, verbose))
    text = "\n".join(lines) + "\n"
    return to_ascii(text) if ascii_only else text


def to_ascii(text: str) -> str:
    """Without any character beyond ASCII."""
    return (
        text.replace("–", "-")
        .replace("·", "-")
        .replace("→", "->")
        .replace("…", "~")
        .encode("ascii", "replace")
        .decode()
    )


def _lines(report: Report, style: Style, marks: dict[str, str], verbose: bool) -> Iterator[str]:
    cause = first_cause(report.findings)
    groups = fold(report.findings)
    cause_group = next((g for g in groups if cause in g), None)
    if cause_group:
        yield from told(cause_group, style, marks)
    for group in sorted((g for g in groups if g is not cause_group), key=lambda g: ORDER[g[0].status]):
        f = group[0]
        if f.ignored:
            if verbose:
                yield style(
                    "%s %s  %s: ignored: %s" % (marks[SKIP], f.id, _subjects(group), f.ignored), fg="bright_black"
                )
        elif f.status in (FAIL, ERROR, WARN) or verbose:
            yield from told(group, style, marks)
    yield from render_changes(report, style)
    yield last_line(report, cause, style, verbose)


def fold(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that differ in their subject alone, told once: eight GPUs with one fault are one line."""
    groups: dict[Finding, list[Finding]] = {}
    for f in findings:
        groups.setdefault(replace(f, subject=""), []).append(f)
    return list(groups.values())


def _subjects(group: list[Finding]) -> str:
    f = group[0]
    named = ", ".join(g.subject for g in group[:4]) + (" and %d more" % (len(group) - 4) if len(group) > 4 else "")
    return named if f.machine in ("", "host") or f.subject.startswith(f.machine) else "%s %s" % (f.machine, named)


def told(group: list[Finding], style: Style, marks: dict[str, str]) -> Iterator[str]:
    """One finding, or several that differ in their subject alone, with proof, fix and cost."""
    f = group[0]
    word = style("%s %s" % (marks[f.status], f.id), fg=COLOURS[f.status], bold=f.status == FAIL)
    because = " (because of %s)" % ", ".join(f.because) if f.because else ""
    said = "%s: %s" % (_subjects(group), f.summary)
    if f.summary.startswith((f.subject + " ", f.subject + ": ")):
        said = _subjects(group) + f.summary[len(f.subject) :]
    yield "%s  %s%s" % (word, said, because)
    for n, line in enumerate(f.evidence):
        yield "     %s %s" % ("%-7s" % (f.proof + ":") if n == 0 and f.proof else " " * 7, line)
    if f.hint.command:
        where = " (%s)" % f.hint.where if f.hint.where else ""
        first, *more = f.hint.command.splitlines()
        yield "     %s%s:  %s" % (f.hint.word, where, style(first, bold=True))
        for line in more:
            yield "          %s" % line
    if f.hint.costs and f.hint.command:
        yield "     %s  %s" % ("then: " if f.hint.word == LOOK else "costs:", f.hint.costs)
    if f.decide:
        yield "     to be sure:  %s" % f.decide


def render_changes(report: Report, style: Style) -> Iterator[str]:
    """Every step as a diff, and every action with what it destroys."""
    yield from _steps(report, style)
    for action in report.actions:
        yield from _action(action, style)


def _steps(report: Report, style: Style) -> Iterator[str]:
    if not report.steps:
        return
    yield style(
        {"plan": "would change:", "apply": "changed:", "revert": "put back:"}.get(report.mode, "changed:"), bold=True
    )
    for step in report.steps:
        yield from diff(step, style)


def diff(step: Step, style: Style = _plain) -> Iterator[str]:
    """A step as the lines of a unified diff, or as one line for a value."""
    if step.effect != "replace":
        command = "  (%s)" % shlex.join(step.argv) if step.argv else ""
        values = (visible(str(value)) for value in (step.before, step.after))
        yield "  %s: %s → %s%s" % (step.target, *values, command)
        return
    before, after = (step.before or "").splitlines(), (step.after or "").splitlines()
    names = (
        step.target if step.before is not None else "/dev/null",
        step.target if step.after is not None else "/dev/null",
    )
    for line in difflib.unified_diff(before, after, *names, lineterm=""):
        yield "  " + style(visible(line, "\t"), fg={"+": "green", "-": "red"}.get(line[0]))


def _action(action: Action, style: Style) -> Iterator[str]:
    yield "  %s: %s" % (action.subject, style(shlex.join(action.argv), bold=True))
    yield "     why:    %s" % action.why
    for loss in action.destroys:
        yield "     %s %s" % (style("loses: ", fg="red", bold=True), loss)
    if action.costs:
        yield "     costs:  %s" % action.costs


def last_line(report: Report, cause: Finding | None, style: Style, verbose: bool) -> str:
    """How many of each, and the first cause; how to see the rest, unless it is shown (verbose)."""
    n = counts(report.findings)
    words = (
        (OK, "ok"),
        (WARN, "to look at"),
        (FAIL, "failed"),
        (ERROR, "could not tell"),
        (SKIP, "skipped"),
        ("ignored", "ignored"),
    )
    parts = ["%d %s" % (n[key], word) for key, word in words if n[key]]
    if report.mode == "revert" or report.command == "revert":
        changes = "%d change%s" % (len(report.steps), "" if len(report.steps) == 1 else "s")
        parts.insert(
            0,
            "%s %s" % (changes, "put back" if report.changed else "to put back")
            if report.steps
            else "nothing to put back",
        )
    parts = parts or ["nothing to judge"]
    tail = "   first cause: %s (hosttune explain %s)" % (style(cause.id, bold=True), cause.id) if cause else ""
    hidden = "" if verbose or not (n[OK] or n[SKIP]) else "   (-v shows all)"
    return " · ".join(parts) + (tail or hidden)
