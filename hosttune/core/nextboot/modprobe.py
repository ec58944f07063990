# SPDX-License-Identifier: Apache-2.0
"""The lines of modprobe.d that count: an administrator's file hides a package's file of the same name (modprobe.d(5))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Tuple

from ..host import Host, list_or_empty, read_or_none

FOLDERS = ("/usr/lib/modprobe.d", "/lib/modprobe.d", "/run/modprobe.d", "/etc/modprobe.d")
"""Later ones hide earlier ones."""


@dataclass(frozen=True)
class Line:
    """One line: its words with module names spelled by underscores, and where it stands."""

    path: str
    number: int
    words: Tuple[str, ...]

    @property
    def place(self) -> str:
        """file:line."""
        return "%s:%d" % (self.path, self.number)


def lines(host: Host) -> Tuple[Line, ...]:
    """Every line that is no comment. Raises OSError for a file that cannot be read."""
    files: Dict[str, str] = {}
    for folder in FOLDERS:
        for name in list_or_empty(host, folder):
            if name.endswith(".conf"):
                files[name] = "%s/%s" % (folder, name)
    found = []
    for name in sorted(files):
        for number, text in enumerate((read_or_none(host, files[name]) or "").splitlines(), 1):
            words = text.split()
            if words and not words[0].startswith("#"):
                found.append(
                    Line(
                        files[name],
                        number,
                        tuple(words[:1] + [plain(words[1])] + words[2:]) if words[1:] else tuple(words),
                    )
                )
    return tuple(found)


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
