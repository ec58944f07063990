# SPDX-License-Identifier: Apache-2.0
"""Which file decides a sysctl at boot. sysctl.d(5): files of all folders sorted by name, the folder earlier in FOLDERS
wins a name, the last assignment wins a key; /etc/sysctl.conf comes last with procps and as 99-sysctl.conf on Debian 12."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional

from .host import Host, list_or_empty, read_or_none

FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")


@dataclass(frozen=True)
class Assignment:
    """One line that sets a key. `value` None: the line takes the key out ("-key")."""

    path: str
    line: int
    value: Optional[str]


def files(host: Host) -> List[str]:
    """The files that are read at boot, in the order in which they count."""
    by_name: Dict[str, str] = {}
    for folder in FOLDERS:
        for name in list_or_empty(host, folder):
            if name.endswith(".conf"):
                by_name.setdefault(name, "%s/%s" % (folder, name))
    ordered = [by_name[name] for name in sorted(by_name)]
    if "99-sysctl.conf" not in by_name and read_or_none(host, "/etc/sysctl.conf") is not None:
        ordered.append("/etc/sysctl.conf")
    return ordered


def assignments(host: Host, key: str) -> List[Assignment]:
    """Every line that sets `key` ("kernel.numa_balancing"), in the order in which they count: the last one decides."""
    found = []
    for path in files(host):
        for number, raw in enumerate((read_or_none(host, path) or "").splitlines(), 1):
            line = raw.strip()
            if not line or line[0] in "#;":
                continue
            name, equals, value = line.partition("=")
            name = name.strip().lstrip("-").strip().replace("/", ".")
            if name == key:
                found.append(Assignment(path, number, value.strip() if equals else None))
    return [a for a in found if a.value is not None]
