# SPDX-License-Identifier: Apache-2.0
"""The window of each GPU's memory that others on PCIe can reach (BAR1), and the largest that the card offers.

Documentation/ABI/testing/sysfs-bus-pci: `resource` has a line per region (start, end, flags); `resourceN_resize` is a bit mask
of sizes, bit n for 2^n MiB. BAR1 is the second region: at index 1, or at 2 where the first has 64 bits (an H200: measured). It is
chosen by the firmware, or by the driver when it is loaded.
"""

from __future__ import annotations

from typing import List, Tuple

from ..door.host import Host, read_or_none
from ..model import Reading, Refused, Step
from ..pci import bus
from .shape_gpu import gpu_report

MIB = 1 << 20
SMALL = 256 * MIB
"""What a card without resizable BAR shows of itself; never all of an inference GPU's memory."""


def one(host: Host, bdf: str) -> Reading:
    """ "256 MiB of 128 GiB" of one GPU. Raises OSError."""
    found = regions(host.read("%s/%s/resource" % (bus.DEVICES, bdf)))
    if len(found) < 2:
        return Reading(skip="it shows no BAR1")
    index, size = found[1]
    offered = read_or_none(host, "%s/%s/resource%d_resize" % (bus.DEVICES, bdf, index))
    if offered is None:
        return (
            Reading("%s of what cannot be told" % text(size))
            if size <= SMALL
            else Reading("%s of %s" % (text(size), text(size)))
        )
    most = max([size] + [MIB << bit for bit in range(64) if int(offered, 16) >> bit & 1])
    return Reading("%s of %s" % (text(size), text(most)))


def regions(resource: str) -> List[Tuple[int, int]]:
    """(index, bytes) of each memory region among the six BARs."""
    found = []
    for index, line in enumerate(resource.splitlines()[:6]):
        start, end, flags = (int(word, 16) for word in line.split())
        if end > start and flags & 0x200:  # IORESOURCE_MEM
            found.append((index, end - start + 1))
    return found


def text(size: int) -> str:
    """ "256 MiB", "128 GiB"."""
    return "%d GiB" % (size >> 30) if size >= 1 << 30 else "%d MiB" % (size >> 20)


def meets(have: str, want: str) -> bool:
    """Whether the card shows all that it can."""
    now, _, most = have.partition(" of ")
    return now == most


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written: a region cannot be resized while a driver is bound (EBUSY), and the firmware must leave room for it."""
    raise Refused(
        "the firmware or the driver chooses it",
        subject,
        "hosttune explain nvidia-resizable-bar  # or in the firmware's setup: Above 4G Decoding and Resizable BAR",
    )


WANT = "all it can"
PCIE_BAR1 = gpu_report(
    id="HT212",
    name="pcie-bar1",
    title="BAR1",
    want=WANT,
    step=step,
    one=one,
    meets=meets,
    why="peer-to-peer over BAR1 and GPUDirect need a window that covers the GPU's memory",
    cost="no BAR1 peer-to-peer; copies between GPUs go through host memory",
    evidence="open-gpu-kernel-modules: static BAR1; Linux drivers/pci/pci-sysfs.c",
    persists="firmware, or /etc/modprobe.d",
)
