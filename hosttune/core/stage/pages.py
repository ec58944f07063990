# SPDX-License-Identifier: Apache-2.0
"""Where a staged model's pages lie: on which NUMA nodes, and in huge pages or small ones. As the kernel says it of a mapping.

Every file is mapped read-only, and one byte of each 2 MiB is touched: that maps a huge page as a whole, and of small ones the
few around it (fault-around). /proc/self/smaps then tells how much is mapped by huge pages (ShmemPmdMapped), and
/proc/self/numa_maps on which nodes what is mapped lies: all of a model in huge pages, a sample of one in small pages. No
weights are read. The files are root's, and none of ours becomes shorter: nothing here can meet a SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional

from ..catalogue import finding
from ..model import FAIL, OK, WARN, Finding, Hint
from . import manifest, space
from .nodes import Copy

HUGE = 2 << 20
STRIDE = HUGE + mmap.PAGESIZE
"""Bytes. Not 2 MiB: pages that are interleaved one by one would all be met on the same node."""


@dataclass(frozen=True)
class Pages:
    """size: bytes of files of 2 MiB and more. huge: how much of it lies in huge pages. nodes: share of each node, of 1."""

    size: int
    huge: int
    nodes: Mapping[str, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """For a person."""
        share = "%d%% in huge pages" % (100 * self.huge // self.size) if self.size else "no large file"
        return "; ".join([share, *("%.0f%% on node %s" % (100 * part, node) for node, part in sorted(self.nodes.items()))])


Look = Callable[[str], Optional[Pages]]


def unseen(name: str) -> Optional[Pages]:
    """Where nothing may be mapped: a machine on paper."""
    return None


def look(name: str) -> Optional[Pages]:
    """Pages of a staged copy; None when there is nothing to be seen. Raises OSError."""
    size, huge = 0, 0
    counts: Dict[str, int] = {}
    for folder, _, files in os.walk(manifest.folder_of(name)):
        for file in files:
            path = os.path.join(folder, file)
            length = os.stat(path, follow_symlinks=False).st_size
            if length >= HUGE:
                size += length
                huge += min(length, _touched(path, counts))
    total = sum(counts.values())
    return Pages(size, huge, {node: count / total for node, count in counts.items()}) if size else None


def _touched(path: str, counts: Dict[str, int]) -> int:
    """Bytes of a file that are mapped by huge pages; the pages seen on each node are added to `counts`."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as view:
            for at in range(0, len(view), STRIDE):
                view[at]
            return _read(os.fstat(fd), counts)
    finally:
        os.close(fd)


def _read(file: os.stat_result, counts: Dict[str, int]) -> int:
    """What smaps and numa_maps say of the one mapping of that file."""
    number = "%02x:%02x %d" % (os.major(file.st_dev), os.minor(file.st_dev), file.st_ino)
    huge, here, start = 0, False, ""
    with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            head = re.match(r"([0-9a-f]+)-[0-9a-f]+ \S+ \S+ (\S+ \d+)\s", line)
            if head:
                here = head[2] == number
                start = head[1] if here else start
            elif here and line.startswith("ShmemPmdMapped:"):
                huge += int(line.split()[1]) << 10
    try:
        with open("/proc/self/numa_maps", encoding="utf-8", errors="surrogateescape") as f:
            line = next((row for row in f if start and row.startswith(start + " ")), "")
    except FileNotFoundError:  # a kernel without NUMA: one node
        line = " N0=1"
    for node, count in re.findall(r" N(\d+)=(\d+)", line):
        counts[node] = counts.get(node, 0) + int(count)
    return huge


def judge(copy: Copy, seen: Optional[Pages], command: str, huge: bool = True) -> List[Finding]:
    """HT510: a model in huge pages, where it shall lie; a copy that is bound to a node and lies elsewhere is a failure.
    command: what stages it. huge: whether this kernel has huge pages for it."""
    if seen is None:
        return []
    again = Hint("hosttune stage drop %s && %s" % (manifest.model_of(copy.name), command), "host",
                 "copies it again; in a fresh mount, or with memory less fragmented", "apply")  # fmt: skip
    elsewhere = 1 - seen.nodes.get(copy.node, 0.0) if copy.node and seen.nodes else 0.0
    if elsewhere > 0.01:
        return [finding("HT510", FAIL, copy.name, "%s lies on other nodes than node %s: %s" % (copy.name, copy.node, seen.words),
                        have=seen.words, want="node " + copy.node, hint=again)]
    if huge and seen.huge * 2 < seen.size:
        return [finding("HT510", WARN, copy.name, "%s of %s lie in small pages: %s" % (
            space.size_text(seen.size - seen.huge), copy.name, seen.words), have=seen.words, want="huge pages", hint=again)]
    return [finding("HT510", OK, copy.name, seen.words, have=seen.words)]
