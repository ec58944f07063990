# SPDX-License-Identifier: Apache-2.0
"""Who has a staged model mapped. Its bytes stay in memory until he ends, and a file that vanishes under an engine that is
still loading makes it fail: so nothing that is in use is taken away."""

from __future__ import annotations

import re
from typing import List, Tuple

from ..door.host import Host, errname
from .manifest import shown
from .tmpfs import Place

MAPS_LIMIT = 64 << 20


def users(host: Host, place: Place, name: str) -> List[Tuple[int, str]]:
    """Processes (pid, command name) that map a file of this model. They are told by the device number of our mount, for a
    container sees the same files under another path; there the path starts at the mount (/NAME/...) or below a bind."""
    if place.mounted is None:
        return []
    major, minor = place.mounted.device.split(":")
    number = "%02x:%02x" % (int(major), int(minor))
    mark = re.compile(r" %s \d+ +.*/%s/" % (re.escape(number), re.escape(name)))
    out = []
    for pid in (entry for entry in host.list("/proc") if entry.isdigit()):
        try:
            maps = host.read_bytes("/proc/%s/maps" % pid, MAPS_LIMIT).decode("utf-8", "replace")
            if mark.search(maps):
                out.append((int(pid), shown(host.read("/proc/%s/comm" % pid).strip())))
        except OSError as e:
            if errname(e) not in ("ENOENT", "ESRCH", "EACCES"):
                raise
    return sorted(out)


def words(found: List[Tuple[int, str]]) -> str:
    """pid 12 (python3), pid 13 (python3)."""
    return ", ".join("pid %d (%s)" % one for one in found[:4]) + (" and %d more" % (len(found) - 4) if len(found) > 4 else "")
