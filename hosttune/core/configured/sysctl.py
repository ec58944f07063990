# SPDX-License-Identifier: Apache-2.0
"""Which file decides a sysctl at boot. sysctl.d(5): files of all folders sorted by name, the folder earlier in FOLDERS
wins a name, the last assignment wins a key; /etc/sysctl.conf comes last with procps and as 99-sysctl.conf on Debian 12."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional

from ..door.host import Host, read_or_none
from . import dropins

FOLDERS = dropins.folders("sysctl.d")
LAST = "/etc/sysctl.conf"


@dataclass(frozen=True)
class Assignment:
    """One line that sets a key. `value` None: the line takes the key out ("-key")."""

    path: str
    line: int
    value: Optional[str]


def path_of(key: str) -> str:
    """ "vm.swappiness" -> "/proc/sys/vm/swappiness"."""
    return "/proc/sys/" + key.replace(".", "/")


def files(host: Host) -> List[str]:
    """The files that are read at boot, in the order in which they count."""
    ordered = dropins.files(host, FOLDERS)
    if not any(dropins.basename(path) == "99-sysctl.conf" for path in ordered) and read_or_none(host, LAST) is not None:
        ordered.append(LAST)
    return ordered


def assignments(host: Host, key: str) -> List[Assignment]:
    """Every line that sets `key` ("kernel.numa_balancing"), in the order in which they count: the last one decides."""
    found = []
    for path in files(host):
        for number, line in dropins.lines(host, path, about=re.escape(key.rpartition(".")[2])):
            name, equals, value = line.partition("=")
            if name.strip().lstrip("-").strip().replace("/", ".") == key:
                found.append(Assignment(path, number, value.strip() if equals else None))
    return [a for a in found if a.value is not None]
