# SPDX-License-Identifier: Apache-2.0
"""hosttune status on one screen: part by part what stands and what is gone, and who brings back what is gone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from ..core import status
from ..core.model import ERROR, FAIL, OK, SKIP, WARN, Finding, Report
from .text import ASCII_MARKS, MARKS, ORDER, Style, fold, last_line, render_changes, to_ascii, told
from .visible import visible_report

RETURNS = {
    status.SETTINGS: ("hosttune apply", "site.yml --tags host", "hosttune-knobs.service"),
    status.NODES: ("nvidia-modprobe", "site.yml --tags host", "hosttune-devices.service"),
    status.RULES: ("hosttune lxc sync ID", "site.yml --tags containers", "hosttune-devices.service"),
    status.MODELS: ("hosttune stage add MODEL", "site.yml --tags models", "hosttune-stage.service"),
    status.SERVICES: ("hosttune unit start NAME", "site.yml --tags serving", ""),
    status.OWN: ("hosttune apply boot-units", "site.yml --tags host", ""),
}
"""For each part: the command, the play, and the unit that does it by itself at each boot."""


def render(report: Report, colour: bool = False, ascii_only: bool = False, verbose: bool = False) -> str:
    """The screen, ending in a line feed. verbose: also what is well, and every line that would change."""
    report = visible_report(report)
    style: Style = click.style if colour else lambda text, **_: text
    marks = ASCII_MARKS if ascii_only else MARKS
    lines = [style(_head(report), bold=True)]
    for name in status.SECTIONS:
        here = [f for f in report.findings if status.section(f) == name]
        if verbose or any(f.status != SKIP for f in here):
            lines += ["", *_section(name, here, report, style, marks, verbose)]
    lines.append("")
    if verbose:
        lines += render_changes(report, style)
    elif report.steps or report.actions:
        lines.append("%s would bring back what is gone (-v shows them)" % _counted(report))
    lines.append(last_line(report, None, style, verbose))
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return to_ascii(text) if ascii_only else text


def _counted(report: Report) -> str:
    numbers = ((len(report.steps), "change"), (len(report.actions), "action"))
    return " and ".join("%d %s%s" % (n, word, "" if n == 1 else "s") for n, word in numbers if n)


def _head(report: Report) -> str:
    mode = report.facts.get("mode", "")
    words = {"plan": "its profile lets hosttune plan only", "apply": "its profile lets hosttune apply"}
    return "%s, up for %s; %s" % (report.machine, report.facts.get("up", "?"), words.get(mode, "without a profile"))


def _section(
    name: str, findings: Sequence[Finding], report: Report, style: Style, marks: dict[str, str], verbose: bool
) -> Iterator[str]:
    counted = {
        status_: sum(f.status == status_ and not f.ignored for f in findings)
        for status_ in (OK, WARN, FAIL, ERROR, SKIP)
    }
    words = ((FAIL, "gone"), (ERROR, "could not tell"), (WARN, "to look at"), (OK, "as wanted"), (SKIP, "skipped"))
    parts = ["%d %s" % (counted[key], word) for key, word in words if counted[key] and (key != SKIP or verbose)]
    worst = FAIL if counted[FAIL] else ERROR if counted[ERROR] else WARN if counted[WARN] else OK
    yield "%s %s %s" % (marks[worst], style("%-9s" % name, bold=True), ", ".join(parts) or "nothing to judge")
    groups = sorted((g for g in fold(findings)), key=lambda g: ORDER[g[0].status])
    for group in groups:
        if verbose or group[0].status in (FAIL, ERROR, WARN) and not group[0].ignored:
            yield from ("  " + line for line in told(group, style, marks))
    if counted[FAIL]:
        yield "  %s" % _who(name, report)


def _who(name: str, report: Report) -> str:
    """Who brings it back: now, and by itself at the next boot."""
    command, play, unit = RETURNS[name]
    enabled = unit and any(f.id == "HT102" and f.subject == unit and f.status == OK for f in report.findings)
    apply = report.facts.get("mode") == "apply"
    boot = (
        "at each boot %s does it" % unit if enabled and apply
        else "at each boot %s only tells it (mode: plan)" % unit if enabled
        else "at a boot nobody does it: %s is not enabled" % unit if unit
        else "at a boot nobody does it"
    )  # fmt: skip
    return "brought back by: %s, or %s; %s" % (command, play, boot)
