# SPDX-License-Identifier: Apache-2.0
"""The lines of modprobe.d(5) that count: an administrator's file hides a package's file of the same name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator, List, Tuple

from ..door.host import Host, read_or_none
from . import dropins

FOLDERS = dropins.folders("modprobe.d")


@dataclass(frozen=True)
class Line:
    """One line: its words with the module's name as the kernel spells it, and where it begins."""

    path: str
    number: int
    words: Tuple[str, ...]

    @property
    def place(self) -> str:
        """file:line."""
        return "%s:%d" % (self.path, self.number)


def lines(host: Host) -> Tuple[Line, ...]:
    """Every line that says something, in the order in which they count. Raises OSError for a file that cannot be read."""
    return tuple(
        Line(path, number, tuple(words[:1] + [plain(word) for word in words[1:2]] + words[2:]))
        for path in dropins.files(host, FOLDERS)
        for number, words in _words(read_or_none(host, path) or "")
    )


def _words(text: str) -> Iterator[Tuple[int, List[str]]]:
    """(number, words) of each line; a backslash at the end joins lines, quotes hold blanks."""
    joined, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        joined += line
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        words = re.findall(r'(?:"[^"]*"|\S)+', joined)
        if words and not words[0].startswith("#"):
            yield start, words
        joined, start = "", 0


def plain(module: str) -> str:
    """A module's name as the kernel spells it."""
    return module.replace("-", "_")


def behind(host: Host, module: str) -> List[str]:
    """The name to ask for, and the names of files behind it, the real one last: Debian builds nvidia-current.ko, and
    `install nvidia modprobe -i nvidia-current` makes that what "nvidia" means. Raises OSError as lines()."""
    found = [module]
    for line in lines(host):
        words = line.words
        if words[:2] == ("install", plain(module)):
            found += [name for flag, name in zip(words, words[1:]) if flag in ("-i", "--ignore-install")]
    return found
