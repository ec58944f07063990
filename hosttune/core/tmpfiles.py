# SPDX-License-Identifier: Apache-2.0
"""Which `w` line of tmpfiles.d(5) decides a file in /sys at boot.

Measured with systemd 252 (tests/kernel/test_knobs_boot.py): of lines with the very same path the first one is taken, by the
order of the files' names, and the others are called duplicates; lines whose paths differ but match one file are all done,
in that order, so the last one decides.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Dict, List, Sequence

from . import dropins
from .host import Host

FOLDERS = dropins.folders("tmpfiles.d")


@dataclass(frozen=True)
class Line:
    """A line that writes `value` to `path`, which may be a pattern. The file is `file`, the line `number`."""

    file: str
    number: int
    path: str
    value: str


def text(pattern: str, value: str) -> str:
    """A line that writes at boot, and only then: a package's `systemd-tmpfiles --create` later on does not."""
    return "w! %s - - - - %s\n" % (pattern, value)


def writes(host: Host, spellings: Sequence[str]) -> List[Line]:
    """The lines that are done at boot and write to any of these paths or patterns, the one that decides last."""
    taken: Dict[str, Line] = {}
    for file in dropins.files(host, FOLDERS):
        for number, line in dropins.lines(host, file, "#"):
            words = line.split(None, 6)
            if len(words) == 7 and words[0].rstrip("!-+=~^$") == "w" and meets(words[1], spellings):
                taken.setdefault(words[1], Line(file, number, words[1], words[6].strip("\"'")))
    return list(taken.values())


def meets(path: str, spellings: Sequence[str]) -> bool:
    """Whether a path or pattern means one of the files that these name; the first CPU stands for all."""
    return any(
        path == each or fnmatch.fnmatch(each.replace("*", "0"), path) or fnmatch.fnmatch(path, each)
        for each in spellings
    )
