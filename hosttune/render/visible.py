# SPDX-License-Identifier: Apache-2.0
"""Text from a machine, made fit to be shown: nothing in it may steer a terminal, forge a line, or spoil a document.

Names of processes, mount points, lines of a config and answers from inside a container are chosen by others.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ..core.model import Report

_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # line ends and direction marks of Unicode
    "\ud800-\udfff\ufeff\ufffe\uffff]"  # bytes that were no UTF-8 (surrogateescape), and what XML refuses
)
LINES_STAY = ("command",)
"""Hint.command: hosttune's own words, of which some are several lines."""


def visible(text: str, keep: str = "") -> str:
    r"""`text` with \x1b in place of an escape character, and so on; characters in `keep` stay."""
    return _STEERING.sub(lambda m: m.group() if m.group() in keep else _escape(ord(m.group())), text)


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return "\\x%02x" % code if code < 0x100 else "\\u%04x" % code


def visible_report(report: Report) -> Report:
    """The report with all its texts visible, but for the contents of files in its steps: those are shown line by line."""
    steps = tuple(dataclasses.replace(_clean(step), before=step.before, after=step.after) for step in report.steps)
    rest: Report = _clean(dataclasses.replace(report, steps=()))
    return dataclasses.replace(rest, steps=steps)


def _clean(value: Any, keep: str = "") -> Any:
    if isinstance(value, str):
        return visible(value, keep)
    if isinstance(value, (tuple, list)):
        return tuple(_clean(v) for v in value)
    if isinstance(value, Mapping):
        return {_clean(k): _clean(v, "\n") for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return dataclasses.replace(
            value, **{name: _clean(getattr(value, name), "\n" if name in LINES_STAY else "") for name in names}
        )
    return value
