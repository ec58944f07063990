# SPDX-License-Identifier: Apache-2.0
"""Who has a staged model mapped, and who stages one now. What is mapped stays in memory until its user ends, and a file that
vanishes under an engine that is still loading makes it fail: so nothing that is in use is taken away."""

from __future__ import annotations

import contextlib
import re
from typing import List, Tuple

from ..door.host import Host, errname, read_or_none
from .manifest import LOCK, shown
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


def stagers(host: Host) -> List[Tuple[int, str]]:
    """Processes that stage models now, or wait for their turn: they have the lock's file open. Only root sees others'."""
    return holders(host, re.compile(re.escape(LOCK) + r"\Z"))


def holders(host: Host, path: "re.Pattern[str]") -> List[Tuple[int, str]]:
    """Processes (pid, command name) that have a file open whose path matches. Only root sees others'."""
    out = []
    for pid in (entry for entry in host.list("/proc") if entry.isdigit()):
        if any(path.match(one) for one in _open_files(host, pid)):
            out.append((int(pid), shown((read_or_none(host, "/proc/%s/comm" % pid) or "").strip())))
    return sorted(out)


def _open_files(host: Host, pid: str) -> List[str]:
    """Where the descriptors of a process lead; what it closes meanwhile is left out, and all of it if it is another's."""
    out: List[str] = []
    with contextlib.suppress(OSError):
        for fd in host.list("/proc/%s/fd" % pid):
            with contextlib.suppress(OSError):
                out.append(host.readlink("/proc/%s/fd/%s" % (pid, fd)))
    return out


def words(found: List[Tuple[int, str]]) -> str:
    """pid 12 (python3), pid 13 (python3)."""
    return ", ".join("pid %d (%s)" % one for one in found[:4]) + (" and %d more" % (len(found) - 4) if len(found) > 4 else "")
