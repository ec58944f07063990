# SPDX-License-Identifier: Apache-2.0
"""How much memory a model may take: MemAvailable less a reserve, and what the cgroup of this process leaves.

Pages of a tmpfs are charged to the cgroup of whoever touches them first (kernel doc cgroup-v2, "Memory Ownership"): a copy
that runs in a unit with MemoryMax is killed by it, however much the machine has. What lies in the tmpfs already is not part
of MemAvailable any more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional

from ..door.host import Host, read_or_none

ARC = "/proc/spl/kstat/zfs/arcstats"
V2 = ("memory.max", "memory.current", "")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
"""Of a cgroup: its limit, what it uses, and the prefix of memory.stat's rows that count all below it too (kernel doc cgroup-v1).
Page cache of files is given back; shmem, which is what is staged, is not among those rows."""
NO_LIMIT = 1 << 62
"""cgroup v1 writes a number where there is no limit: the last whole page of a signed 64-bit one."""
RESERVE_SHARE, RESERVE_MOST = 16, 16 << 30
"""A sixteenth of all memory, at most 16 GiB, is left to the rest: page tables, engines' pinned buffers, sshd."""


@dataclass(frozen=True)
class Memory:
    """Bytes. cgroup: what the tightest memory.max above this process leaves, None where there is no limit. arc: what ZFS's
    cache can give back, which MemAvailable does not count. engines: what engines that do not run need beside their models, as
    declared; taken: what those that run have of it, which is no part of `available` any more (told only)."""

    total: int
    available: int
    cgroup: Optional[int] = None
    arc: int = 0
    engines: int = 0
    taken: int = 0

    @property
    def reserve(self) -> int:
        """What is left alone."""
        return min(self.total // RESERVE_SHARE, RESERVE_MOST)

    @property
    def left(self) -> int:
        """What may be filled; below zero when what is kept for others is not there even now."""
        left = self.available + self.arc - self.reserve - self.engines
        return left if self.cgroup is None else min(left, self.cgroup)

    @property
    def room(self) -> int:
        """What may be filled."""
        return max(0, self.left)

    @property
    def words(self) -> str:
        """The sum, for a person."""
        said = size_text(self.available) + " available"
        if self.arc:
            said += " and %s in ZFS's cache that it gives back" % size_text(self.arc)
        said += " less a reserve of " + size_text(self.reserve)
        if self.engines:
            said += " and %s for engines" % size_text(self.engines)
        if self.taken:
            said += " (%s more have engines that run)" % size_text(self.taken)
        if self.cgroup is not None and self.cgroup < self.available + self.arc - self.reserve - self.engines:
            return "the cgroup of this process leaves %s" % size_text(self.cgroup)
        return "memory has " + said


def memory(host: Host) -> Memory:
    """What /proc/meminfo and the cgroup say. Raises OSError."""
    rows = _rows(host.read("/proc/meminfo").replace(":", ""))
    return Memory(rows["MemTotal"] << 10, rows["MemAvailable"] << 10, _cgroup_room(host), _arc_room(host))


def _arc_room(host: Host) -> int:
    """Bytes above c_min in the ARC: the least it keeps (OpenZFS, arcstats). 0 without ZFS."""
    stat = {row[0]: int(row[2]) for row in (line.split() for line in (read_or_none(host, ARC) or "").splitlines())
            if len(row) == 3 and row[2].isdigit()}
    return max(0, stat.get("size", 0) - stat.get("c_min", 0))


def _rows(text: str) -> Dict[str, int]:
    fields = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in fields if len(row) > 1 and row[1].isdigit()}


def _cgroup_room(host: Host) -> Optional[int]:
    left: List[int] = []
    for line in (read_or_none(host, "/proc/self/cgroup") or "").splitlines():
        number, names, path = line.split(":", 2)
        if number == "0":
            left += _left(host, "/sys/fs/cgroup", path, *V2)
        elif "memory" in names.split(","):
            left += _left(host, "/sys/fs/cgroup/memory", path, *V1)
    return min(left, default=None)


def _left(host: Host, top: str, path: str, limit: str, usage: str, prefix: str) -> Iterator[int]:
    """What each limit from `path` up leaves. The topmost level too: in a container that is the container's own cgroup, with its
    limit; a machine's has none."""
    levels = path.strip("/").split("/") if path.strip("/") else []
    for depth in range(len(levels), -1, -1):
        folder = "/".join([top, *levels[:depth]])
        most = (read_or_none(host, "%s/%s" % (folder, limit)) or "max").strip()
        if most.isdigit() and int(most) < NO_LIMIT:
            used = int(read_or_none(host, "%s/%s" % (folder, usage)) or 0)
            stat = _rows(read_or_none(host, folder + "/memory.stat") or "")
            yield max(0, int(most) - used + stat.get(prefix + "inactive_file", 0) + stat.get(prefix + "active_file", 0))


def bytes_of(text: str) -> int:
    """Bytes of a number with K, M, G or T after it (powers of 1024), as systemd reads them. ValueError for anything else."""
    unit = "KMGT".find(text[-1:]) + 1 if text[-1:] else 0
    return int(text[:-1] if unit else text) << 10 * unit


def rate_of(text: str) -> float:
    """Bytes a second of "2GB/s", "500 MB/s", "1.5G", in the decimal units that `size_text` writes. ValueError for anything
    else: a rate of nothing too, and a number alone, whose copy would take years if bytes were meant."""
    found = re.match(r"(\d+(?:\.\d+)?) ?([kMGT])B?(?:/s)?\Z", text)
    if not found or not float(found.group(1)):
        raise ValueError("%r is no rate such as 2GB/s" % text)
    return float(found.group(1)) * 1000.0 ** " kMGT".index(found.group(2))


def size_text(count: float) -> str:
    """Bytes as a person reads them, decimal units as model hubs use them."""
    size, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if abs(size) < 1000:
            break
        size, unit = size / 1000, larger
    return "%.0f %s" % (size, unit) if unit == "bytes" or size >= 100 else "%.1f %s" % (size, unit)


INODES_SPARE = 64
"""Folders of the model, its manifest, hosttune's notes."""


def inodes(files: int, left: int) -> str:
    """Why so many files more do not fit into a tmpfs that takes `left` more, "" if they do. One that hosttune mounts takes as
    many as half of the machine's pages (kernel doc filesystems/tmpfs, nr_inodes)."""
    if not files or files + INODES_SPARE <= left:
        return ""
    return "%d files are wanted and the tmpfs takes %d more (nr_inodes)" % (files, left)


def fit(need: int, freed: int, there: int, now: Memory) -> str:
    """Why `need` bytes more do not fit, with the sum; "" if they do. freed: bytes of an old copy that go first.
    there: what is staged already (told only)."""
    room = now.room + freed
    if need <= room:
        return ""
    return "%s are wanted and %s fit: %s%s; %s are staged already; %s too much" % (
        size_text(need), size_text(room), now.words, ", and %s of an older copy" % size_text(freed) if freed else "",
        size_text(there), size_text(need - freed - now.left))
