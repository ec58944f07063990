# SPDX-License-Identifier: Apache-2.0
"""The kernel's log, as far as it is about GPUs, modules and refusals. Nothing else of it is kept, shown or recorded."""

from __future__ import annotations

import re
from typing import Optional, Tuple

from .host import Host, Ran

COMMAND = ("dmesg",)
"""Reads the ring buffer; root, or kernel.dmesg_restrict=0."""
_ABOUT = re.compile(
    r"NVRM|nvidia|\bXid\b|vfio-pci|nouveau|devmem_alloc|request_free_mem_region|D3cold|Loading of module|key was rejected"
    r"|module verification|avc:|apparmor=.DENIED",
    re.IGNORECASE,
)


def kept(ran: Ran) -> Ran:
    """What the command printed, without the lines that are about something else."""
    return Ran(ran.rc, "".join(line + "\n" for line in ran.out.splitlines() if _ABOUT.search(line)), ran.err, ran.timeout)


def lines(host: Host) -> Optional[Tuple[str, ...]]:
    """Oldest first; None when this caller may not read them."""
    ran = kept(host.run(COMMAND))
    return tuple(ran.out.splitlines()) if ran.rc == 0 and not ran.timeout else None
