# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes that a model's pages may lie on: over all of them, on one, or one whole copy on each.

Interleaved is the mount's own policy (mpol=interleave). Another placement is a file's: mbind(2) on a mapping of a tmpfs file
sets the shared policy of its pages, which fallocate(2) and write(2) then follow, whoever calls them (mm/shmem.c).
"""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass
from typing import Dict, List, Tuple

from ..door.host import Host, read_or_none
from ..model import Refused

SYSFS = "/sys/devices/system/node"
INTERLEAVE, PER_NODE = "interleave", "per-node"
MPOL_BIND = 2
_NR_MBIND = {"x86_64": 237, "aarch64": 235}
"""arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h."""


@dataclass(frozen=True)
class Copy:
    """One copy of a model in memory. name: of its folder and manifest. node: it is bound to, "" for the mount's policy."""

    name: str
    node: str = ""


def with_memory(host: Host) -> List[int]:
    """Nodes that have memory; [0] where the kernel knows no nodes."""
    found: List[int] = []
    for part in (read_or_none(host, SYSFS + "/has_memory") or "").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found or [0]


def copies(host: Host, name: str, placement: str) -> Tuple[Copy, ...]:
    """The copies that a placement means, the one under the model's own name first. Refused for a node that has no memory."""
    there = with_memory(host)
    if placement == INTERLEAVE:
        return (Copy(name),)
    if placement == PER_NODE:
        first, rest = there[0], there[1:]
        return (Copy(name, str(first)), *(Copy("%s@node%d" % (name, node), str(node)) for node in rest))
    node = placement.partition(":")[2]
    if not node.isdigit() or int(node) not in there:
        raise Refused("this machine has no memory on node %s (nodes with memory: %s)" % (node, ", ".join(map(str, there))),
                      "models.%s.placement" % name, "placement: interleave")
    return (Copy(name, node),)


def room(host: Host, node: str) -> int:
    """Bytes that may be filled on one node: free, and the page cache of files, less a sixteenth of it."""
    rows: Dict[str, int] = {}
    for line in (read_or_none(host, "%s/node%s/meminfo" % (SYSFS, node)) or "").splitlines():
        row = re.match(r"Node \d+ ([\w()]+):\s+(\d+) kB", line)
        if row:
            rows[row[1]] = int(row[2]) << 10
    cache = rows.get("Active(file)", 0) + rows.get("Inactive(file)", 0)
    return max(0, rows.get("MemFree", 0) + cache - rows.get("MemTotal", 0) // 16)


def bind(fd: int, size: int, node: str) -> None:
    """Bind the pages of a tmpfs file, which has none yet, to one node. Raises OSError."""
    import ctypes
    import platform

    if not size:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    number = _NR_MBIND.get(platform.machine())
    if number is None:
        raise OSError(38, "mbind is not known on %s" % platform.machine())
    bits = ctypes.sizeof(ctypes.c_ulong) * 8
    words = int(node) // bits + 1
    mask = (ctypes.c_ulong * words)()
    mask[int(node) // bits] = 1 << int(node) % bits
    with mmap.mmap(fd, size) as mapping:
        at = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        done = libc.syscall(ctypes.c_long(number), ctypes.c_void_p(at), ctypes.c_size_t(size), ctypes.c_int(MPOL_BIND),
                            mask, ctypes.c_ulong(words * bits + 1), ctypes.c_uint(0))  # fmt: skip
        e = ctypes.get_errno()
    if done:
        raise OSError(e, os.strerror(e))
