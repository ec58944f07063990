# SPDX-License-Identifier: Apache-2.0
"""The settings of a host as a table: setting, subject, now, wanted; below what is not as wanted, why, who wants it, how sure that
is, and what being wrong costs. Where the terminal is too narrow for columns, each setting is a short paragraph. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence

import click

from ..core.model import ERROR, FAIL, OK, SKIP, WARN, Finding, Report
from ..core.settings import Setting
from .text import ASCII_MARKS, COLOURS, MARKS, ORDER, last_line, to_ascii
from .visible import visible_report

HEADS = ("", "setting", "subject", "now", "wanted")
GAP = "  "
LONGEST = (8, 26, 24, 22, 22)
"""Characters of each cell. A value that is longer is cut, and then told whole below the row."""
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

Style = Callable[..., str]


def render(
    report: Report,
    settings: Mapping[str, Setting],
    width: int,
    colour: bool = False,
    ascii_only: bool = False,
    verbose: bool = False,
) -> str:
    """The table, ending in a line feed. settings: by finding id. width: of the terminal. verbose: the reasons of all rows, and
    what does not apply."""
    report = visible_report(report)
    style: Style = click.style if colour else lambda text, **_: text
    marks = ASCII_MARKS if ascii_only else MARKS
    groups = [g for g in fold(report.findings) if verbose or not _silent(g[0])]
    groups.sort(key=lambda g: ORDER[g[0].status])
    rows = [_cells(group, settings.get(group[0].id), marks) for group in groups]
    widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    lines: list[str] = []
    wide = sum(widths) + len(GAP) * (len(HEADS) - 1) <= width
    if rows and wide:
        lines.append(style(_columns(HEADS, widths), fg="bright_black"))
    for n, (group, row) in enumerate(zip(groups, rows, strict=True)):
        f = group[0]
        lines += _row(f, row, widths if wide else None, style)
        if verbose or f.status in (FAIL, ERROR, WARN):
            lines += _seen(f, settings.get(f.id), row, width)
            following = groups[n + 1][0] if n + 1 < len(groups) else None
            if not following or (following.id, following.status) != (f.id, f.status):  # once for now and boot
                lines += _reasons(f, settings.get(f.id), width, style)
    lines.append(last_line(report, None, style, verbose))
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return to_ascii(text) if ascii_only else text


def _silent(f: Finding) -> bool:
    """What does not apply here: no value was seen. An opt-in that differs has one, and is shown."""
    return bool(f.ignored) or f.status == SKIP and not f.have


def fold(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that differ in nothing but their subject: eight GPUs with one value are one row."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for f in findings:
        said = (f.summary.replace(f.subject, ""), tuple(line.replace(f.subject, "") for line in f.evidence))
        groups.setdefault((f.id, f.status, f.have, f.want, f.machine, f.ignored, said), []).append(f)
    return list(groups.values())


def subjects(group: Sequence[Finding]) -> str:
    """`8 GPUs` for the addresses of eight, `now, boot`, or the first two and how many more."""
    names = [f.subject for f in group]
    if len(names) > 1 and all(map(_BDF.fullmatch, names)):
        return "%d GPUs" % len(names)
    return ", ".join(names[:2]) + (" and %d more" % (len(names) - 2) if len(names) > 2 else "")


def _cells(group: Sequence[Finding], setting: Setting | None, marks: Mapping[str, str]) -> tuple[str, ...]:
    f = group[0]
    want = "" if f.status == SKIP and not f.have else f.want
    subject = (
        "" if f.subject == f.name else subjects(group)
    )  # of one that could not be read, or does not apply, as a whole
    cells = (setting.name if setting else f.name, subject, f.have or "-", want or "-")
    return (
        "%s %s" % (marks[f.status], f.id),
        *(c if len(c) <= most else c[: most - 1] + "…" for c, most in zip(cells, LONGEST[1:], strict=True)),
    )


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join("%-*s" % pair for pair in zip(widths, cells, strict=True))


def _row(f: Finding, row: Sequence[str], widths: Sequence[int] | None, style: Style) -> Iterator[str]:
    colour = COLOURS[f.status]
    if widths:
        mark, rest = _columns(row[:1], widths[:1]), _columns(row[1:], widths[1:])
        yield (
            style(mark, fg=colour, bold=f.status == FAIL) + GAP + (style(rest, fg=colour) if f.status == SKIP else rest)
        )
        return
    yield "%s  %s" % (style(row[0], fg=colour, bold=f.status == FAIL), row[1])
    if f.have:
        yield "    %s: %s" % (row[2], row[3] if f.status == OK else "%s, wanted %s" % (row[3], row[4]))


def _seen(f: Finding, setting: Setting | None, row: Sequence[str], width: int) -> Iterator[str]:
    """What the columns do not say of this row: a summary of its own, a value that was cut, what decides it."""
    columns_say_it = setting and f.summary == "%s is %s, want %s" % (setting.title, f.have, f.want)
    if f.status != OK and not (columns_say_it and not any(cell.endswith("…") for cell in row[3:])):
        yield from _paragraph("seen", f.summary, width)
    for line in f.evidence:
        yield from _paragraph("at", line, width)


def _reasons(f: Finding, setting: Setting | None, width: int, style: Style) -> Iterator[str]:
    if setting:
        for word, text in (
            ("why", setting.why),
            ("from", _source(setting)),
            ("else", setting.cost),
            ("kept in", setting.persists),
        ):
            if text:
                yield from _paragraph(word, text, width)
    if f.hint.command and f.status in (FAIL, ERROR, WARN):
        first, *more = f.hint.command.splitlines()
        yield "    %-8s %s" % (f.hint.word, style(first, bold=True))
        yield from ("             " + line for line in more)


def _source(setting: Setting) -> str:
    return "%s; %s" % (setting.source, setting.evidence) if setting.evidence else setting.source


def _paragraph(word: str, text: str, width: int) -> list[str]:
    head = "    %-8s " % word
    return textwrap.wrap(
        text, max(width, 40), initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    )
