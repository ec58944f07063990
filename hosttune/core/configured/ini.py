# SPDX-License-Identifier: Apache-2.0
"""Which file decides a value of systemd's own settings: system.conf, logind.conf and their drop-ins.

systemd-system.conf(5): the main file first, then the drop-ins by name; the last assignment wins, an empty one takes it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List

from ..door.host import Host
from . import dropins

MAIN = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")


@dataclass(frozen=True)
class Assignment:
    """One line `key=value` of the section that was asked for."""

    path: str
    line: int
    value: str

    @property
    def drop_in(self) -> bool:
        """In a drop-in, not in the main file."""
        return self.path.rpartition("/")[0].endswith(".conf.d")


def assignments(host: Host, file: str, section: str, key: str) -> List[Assignment]:
    """Every line that sets `key` in [section] of systemd/<file> ("logind.conf") and its drop-ins; the last one decides."""
    main = next((path for path in ("%s/%s" % (folder, file) for folder in MAIN) if dropins.lines(host, path)), "")
    found: List[Assignment] = []
    for path in [main] * bool(main) + dropins.files(host, dropins.folders("systemd/%s.d" % file)):
        now = ""
        for number, line in dropins.lines(host, path):
            if line.startswith("["):
                now = line.strip("[]")
                continue
            name, equals, value = line.partition("=")
            if equals and now == section and name.strip() == key:
                found.append(Assignment(path, number, value.strip()))
    return found
