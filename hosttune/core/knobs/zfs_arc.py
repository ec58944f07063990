# SPDX-License-Identifier: Apache-2.0
"""How much memory ZFS may use as its cache (ARC). It competes with models in tmpfs.

Source: Proxmox VE's chapter on local ZFS: new installations get 10 % of memory, at most 16 GiB; older ones may still allow
half. A limit at or under zfs_arc_min is ignored. With root on ZFS the option is read from the initramfs.
"""

from __future__ import annotations

import re
import shlex
from typing import Dict, Tuple

from ..configured import cmdline, dropins
from ..door.host import Host, read_or_none
from ..model import Reading
from .shape_report import report_knob

STATS = "/proc/spl/kstat/zfs/arcstats"
NOW, FOLDERS, OWN = "/sys/module/zfs/parameters/zfs_arc_max", dropins.folders("modprobe.d"), "/etc/modprobe.d/zfs.conf"
_SIZE = re.compile(r"([0-9]{1,7}(?:\.[0-9])?)G")


def gib(text: str) -> float:
    """16.0 of "16G"; -1 for what is no such size."""
    found = _SIZE.fullmatch(text)
    return float(found.group(1)) if found else -1


def _text(size: int) -> str:
    return "%.1fG" % (size / (1 << 30))


def _stat(host: Host, name: str) -> int:
    return next((int(line.split()[2]) for line in host.read(STATS).splitlines() if line.split()[:1] == [name]), 0)


def read(host: Host) -> Dict[str, Reading]:
    """Now what ZFS goes by; at boot what a module option says, else what is there now."""
    now = _text(_stat(host, "c_max"))
    where, size = _option(host)
    return {"now": Reading(now, where=STATS), "boot": Reading(_text(size) if size else now, where=where)}


def _option(host: Host) -> Tuple[str, int]:
    """(path:line, bytes) of the module option that decides; ("", 0) without one. The command line comes last."""
    said = cmdline.value(host, "zfs.zfs_arc_max")
    if said and said.isdecimal():
        return cmdline.NOW, int(said)
    found = ("", 0)
    for path in dropins.files(host, FOLDERS):
        for number, line in dropins.lines(host, path):
            option = re.match(r"options\s+zfs\s.*\bzfs_arc_max=(\d+)", line)
            if option:
                found = ("%s:%d" % (path, number), int(option.group(1)))
    return found


def by_hand(host: Host, subject: str, want: str) -> Tuple[str, str]:
    """Now: a write. At boot: the option, in the file that has it or else in zfs.conf, and the initramfs anew."""
    size = int(gib(want) * (1 << 30))
    if size <= _stat(host, "c_min"):
        least = _text(_stat(host, "c_min"))
        return STATS, "grep c_min %s  # want more than zfs_arc_min, which is %s: ZFS ignores a smaller limit" % (STATS, least)
    if subject == "now":
        return NOW, "echo %d > %s" % (size, NOW)
    where, _ = _option(host)
    if where == cmdline.NOW:
        return cmdline.edit(host, "zfs.zfs_arc_max=%d" % size)
    if where:
        path, line = where.rsplit(":", 1)
        change = "sed -i '%ss/zfs_arc_max=[0-9]*/zfs_arc_max=%d/' %s" % (line, size, shlex.quote(path))
    else:
        change = "echo 'options zfs zfs_arc_max=%d' >> %s" % (size, OWN)
    return where or OWN, change + " && update-initramfs -u -k all"


ZFS_ARC = report_knob(
    id="HT111",
    name="zfs-arc",
    title="the most that ZFS may cache",
    want="16G",
    check=lambda want: "" if gib(want) > 0 else "%s is no size such as 16G" % (want or "an empty text"),
    meets=lambda have, want: gib(have) <= gib(want),
    read=read,
    by_hand=by_hand,
    absent=lambda host: "" if read_or_none(host, STATS) is not None else "ZFS is not loaded",
    persists="/etc/modprobe.d, and the initramfs",
    why="models in tmpfs and the cache of ZFS want the same memory, and ZFS gives it back slowly",
    cost="too high: staging finds no room, or the machine runs out of memory while ZFS holds half of it",
    evidence="Proxmox VE's own default: 10 % of memory, at most 16 GiB",
)
