# SPDX-License-Identifier: Apache-2.0
"""Whether each GPU may mark its requests as relaxed: bit 4 of Device Control. The driver turns it on; the kernel takes it back
where the root port is known to do it wrong (drivers/pci/quirks.c), which is why hosttune never writes it."""

from __future__ import annotations

from ..door.host import Host
from ..model import Reading, Refused, Step
from ..pci import express as pci_express
from .shape_gpu import gpu_report


def one(host: Host, bdf: str) -> Reading:
    """On or off of one GPU. Raises Unreadable, OSError."""
    express = pci_express.express(pci_express.config(host, bdf))
    if express is None:
        return Reading(skip="has no PCI Express capability")
    return Reading("on" if express.relaxed_ordering else "off")


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written."""
    raise Refused(
        "the driver and the kernel decide it",
        subject,
        "journalctl -k -g 'Relaxed Ordering'  # names a root port without it",
    )


PCIE_RELAXED_ORDERING = gpu_report(
    id="HT206",
    name="pcie-relaxed-ordering",
    title="relaxed ordering",
    want="on",
    step=step,
    one=one,
    why="writes that may pass each other keep a path across sockets full; nvidia-relaxed-ordering makes all writes of a GPU such",
    cost="less bandwidth of transfers that cross sockets, on some platforms",
    evidence="open-gpu-kernel-modules kernel/gpu/bif, Linux drivers/pci/quirks.c; a gain between GPUs on AMD is unproven",
    persists="the driver at each load",
)
