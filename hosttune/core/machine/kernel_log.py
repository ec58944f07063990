# SPDX-License-Identifier: Apache-2.0
"""The kernel's log, as far as it is about GPUs, modules and refusals. Nothing else of it is kept, shown or recorded."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

from ..door.host import Host, Ran

COMMAND = ("dmesg",)
"""Reads the ring buffer; root, or kernel.dmesg_restrict=0."""
_ABOUT = re.compile(
    r"NVRM|nvidia|\bXid\b|vfio-pci|nouveau|devmem_alloc|request_free_mem_region|D3cold|loading of .*module|unsigned module"
    r"|module verification",
    re.IGNORECASE,
)
_OTHERS = re.compile(r"command line:|apparmor=|avc:|audit:|systemd\[", re.IGNORECASE)
"""The kernel's command line and refusals of other programs may name nvidia beside what is nobody's business."""
_PARAGRAPH = re.compile(r"NVRM: *(The NVIDIA .*|This PCI I/O region .*)\Z")
_CONTINUED = re.compile(r"NVRM: *(?!GPU |Xid|The NVIDIA|This PCI|No |None |loading|API )(\S.*)\Z")
_LONGEST = 6


def kept(ran: Ran) -> Ran:
    """What the command printed, without the lines that are about something else."""
    lines = [line for line in ran.out.split("\n") if _ABOUT.search(line) and not _OTHERS.search(line)]
    return Ran(ran.rc, "".join(line + "\n" for line in lines), ran.err, ran.timeout)


def lines(host: Host) -> Optional[Tuple[str, ...]]:
    """Oldest first, a message of several lines as one; None when this caller may not read them."""
    ran = kept(host.run(COMMAND))
    return _joined(ran.out.splitlines()) if ran.rc == 0 and not ran.timeout else None


def _joined(rows: Sequence[str]) -> Tuple[str, ...]:
    """The driver breaks its paragraphs, and names the GPU in the first line alone: what follows belongs to it."""
    found: List[str] = []
    left = 0
    for row in rows:
        more = _CONTINUED.search(row) if left else None
        if more:
            found[-1] += " " + more.group(1)
            left -= 1
        else:
            found.append(row)
            left = _LONGEST if _PARAGRAPH.search(row) else 0
    return tuple(found)
