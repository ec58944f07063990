# SPDX-License-Identifier: Apache-2.0
"""Who listens on a TCP port of this machine (of this network namespace), and how many connections it holds.

Source: proc(5), /proc/net/tcp: local address and port in hex, state, and the socket's inode in the tenth field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

from ..door.host import Host, list_or_empty

LISTEN, ESTABLISHED = "0A", "01"
"""States of include/net/tcp_states.h."""


@dataclass(frozen=True)
class Port:
    """listens: somebody does. pid and comm: who, 0 and "" when that cannot be seen. connections: those open now."""

    listens: bool
    pid: int = 0
    comm: str = ""
    connections: int = 0


def look(host: Host, port: int) -> Port:
    """The port as it is now. Raises OSError when /proc/net/tcp cannot be read."""
    rows = [row for name in ("tcp", "tcp6") for row in _rows(host, name, port)]
    inodes = {row[9] for row in rows if row[3] == LISTEN}
    if not inodes:
        return Port(False)
    pid = _holder(host, {"socket:[%s]" % inode for inode in inodes})
    comm = ""
    if pid:
        try:
            comm = host.read("/proc/%d/comm" % pid).strip()
        except OSError:
            pid = None
    return Port(True, pid or 0, comm, sum(row[3] == ESTABLISHED for row in rows))


def connections(host: Host, port: int, pid: int) -> int:
    """How many connections to a port are open in a process's network namespace (a container's init). Raises OSError."""
    rows = [row for name in ("tcp", "tcp6") for row in _rows(host, name, port, "/proc/%d/net/" % pid)]
    return sum(row[3] == ESTABLISHED for row in rows)


def _rows(host: Host, name: str, port: int, folder: str = "/proc/net/") -> List[List[str]]:
    try:
        lines = host.read(folder + name).splitlines()[1:]
    except FileNotFoundError:
        return []  # no IPv6 here
    wanted = ":%04X" % port
    return [row for row in (line.split() for line in lines) if len(row) > 9 and row[1].endswith(wanted)]


def _holder(host: Host, sockets: "set[str]") -> Optional[int]:
    for pid in sorted((int(n) for n in list_or_empty(host, "/proc") if n.isdigit())):
        folder = "/proc/%d/fd" % pid
        try:
            names = host.list(folder)
        except OSError:
            continue  # gone, or another user's
        for name in names:
            try:
                if host.readlink("%s/%s" % (folder, name)) in sockets:
                    return pid
            except OSError:
                continue
    return None
