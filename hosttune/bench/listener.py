# SPDX-License-Identifier: Apache-2.0
"""Which process listens on a port of this machine: its id and start time tell a restarted server from the one that was there."""

from __future__ import annotations

import ipaddress
import re

from ..core.door.host import Host, list_or_empty

LISTEN = "0A"
"""TCP_LISTEN of include/net/tcp_states.h, as /proc/net/tcp prints it."""


def is_local(name: str) -> bool:
    """Whether a host name means this machine for certain."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def listeners(host: Host, port: int, known: str = "") -> str:
    """ "PID@STARTTIME" of each process that holds the listening socket, joined by commas; "" when none can be seen.

    Only root sees other users' processes, and a server in another network namespace is not seen from here.
    known: an earlier answer. While it still holds, not every file of every process is looked at again.

    Source: proc(5), /proc/net/tcp (inode is the tenth field), /proc/PID/stat (start time is the 22nd, in clock ticks).
    """
    sockets = {"socket:[%s]" % inode for name in ("tcp", "tcp6") for inode in _inodes(host, name, port)}
    if not sockets:
        return ""
    if known and all(_holds(host, pid, sockets) and _start(host, pid) == at for pid, at in _parsed(known)):
        return known
    found = []
    for pid in sorted((int(n) for n in list_or_empty(host, "/proc") if n.isdigit())):
        if _holds(host, pid, sockets):
            found.append("%d@%s" % (pid, _start(host, pid)))
    return ",".join(found)


def _parsed(known: str) -> list[tuple[int, str]]:
    return [(int(pid), at) for pid, _, at in (part.partition("@") for part in known.split(","))]


def _inodes(host: Host, name: str, port: int) -> list[str]:
    try:
        rows = [line.split() for line in host.read("/proc/net/" + name).splitlines()[1:]]
    except OSError:
        return []
    wanted = ":%04X" % port
    return [row[9] for row in rows if len(row) > 9 and row[1].endswith(wanted) and row[3] == LISTEN]


def _holds(host: Host, pid: int, sockets: set[str]) -> bool:
    folder = "/proc/%d/fd" % pid
    try:
        names = host.list(folder)
    except OSError:
        return False  # gone, or another user's
    for name in names:
        try:
            if host.readlink("%s/%s" % (folder, name)) in sockets:
                return True
        except OSError:
            continue
    return False


def _start(host: Host, pid: int) -> str:
    try:
        stat = host.read("/proc/%d/stat" % pid)
    except OSError:
        return "gone"
    after_name = re.sub(r"^.*\)", "", stat, flags=re.DOTALL).split()
    return after_name[19]
