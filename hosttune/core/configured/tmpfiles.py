# SPDX-License-Identifier: Apache-2.0
"""Which `w` line of tmpfiles.d(5) decides a file in /sys at boot.

Measured with systemd 252 (tests/kernel/test_knobs_boot.py): of lines with the very same path the first one is taken, by the
order of the files' names, and the others are called duplicates; if the first is `w+`, all other `w+` are done too. Lines whose
paths differ but match one file are done in the order in which each path comes first, so the last of them decides.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Dict, List, Sequence

from ..door.host import Host
from . import dropins

FOLDERS = dropins.folders("tmpfiles.d")


@dataclass(frozen=True)
class Line:
    """A line that writes `value` to `path`, which may be a pattern. The file is `file`, the line `number`. adds: it is `w+`."""

    file: str
    number: int
    path: str
    value: str
    adds: bool = False


def text(pattern: str, value: str) -> str:
    """A line that writes at boot, and only then: a package's `systemd-tmpfiles --create` later on does not."""
    return "w! %s - - - - %s\n" % (pattern, value)


def writes(host: Host, spellings: Sequence[str]) -> List[Line]:
    """The lines that are done at boot and write to any of these paths or patterns, the one that decides last."""
    by_path: Dict[str, List[Line]] = {}
    for file in dropins.files(host, FOLDERS):
        for number, line in dropins.lines(host, file, "#", r"^\s*w"):
            words = line.split(None, 6)
            if len(words) == 7 and words[0].rstrip("!-+=~^$") == "w" and meets(words[1], spellings):
                same = by_path.setdefault(words[1], [])
                if not same or ("+" in words[0] and same[0].adds):
                    same.append(Line(file, number, words[1], words[6].strip("\"'"), "+" in words[0]))
    return [line for same in by_path.values() for line in same]


def meets(path: str, spellings: Sequence[str]) -> bool:
    """Whether a path or pattern means one of the files that these name; the first CPU stands for all."""
    return any(
        path == each or fnmatch.fnmatch(each.replace("*", "0"), path) or fnmatch.fnmatch(path, each)
        for each in spellings
    )
