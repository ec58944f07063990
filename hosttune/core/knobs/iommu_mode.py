# SPDX-License-Identifier: Apache-2.0
"""How the IOMMU treats each GPU: the type of its IOMMU group (Documentation/ABI/testing/sysfs-kernel-iommu_groups).

identity passes addresses through; DMA and DMA-FQ translate them, which NVIDIA does not support for peer-to-peer on bare
metal. It is decided at boot, on the kernel command line, which hosttune never writes.
"""

from __future__ import annotations

from typing import Dict

from ..configured import cmdline
from ..door.host import Host, read_or_none
from ..gpu import own
from ..model import REPORT, Knob, Reading, Refused, Step
from ..pci import bus


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: identity, DMA-FQ ..} of each GPU; a skip where no IOMMU is in use."""
    return own.each(host, one)


def one(host: Host, bdf: str) -> Reading:
    """Of one GPU. Raises OSError."""
    group = bus.iommu_group(host, bdf)
    if not group:
        return Reading(skip="no IOMMU stands between it and memory: nothing is translated")
    path = "/sys/kernel/iommu_groups/%s/type" % group
    kind = read_or_none(host, path)
    if kind is None:
        return Reading(error="the kernel does not tell how its IOMMU group %s is treated (no %s)" % (group, path))
    return Reading(kind.strip(), where=path)


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written: the exact edit is told."""
    if cmdline.value(host, "iommu") == "pt":
        raise Refused("iommu=pt is on the command line already, and this group is translated all the same", cmdline.NOW,
                      "journalctl -k -g iommu")  # fmt: skip
    file, line = cmdline.edit(host, add="iommu=pt")
    raise Refused("it is decided at boot, by the kernel command line (%s)" % file, cmdline.NOW, line)


IOMMU_MODE = Knob(
    id="HT210",
    name="iommu-mode",
    title="IOMMU group type",
    want="identity",
    read=read,
    step=step,
    check=lambda want: "" if want in ("identity", "DMA", "DMA-FQ") else "%s is none of identity, DMA, DMA-FQ" % want,
    skip=own.skip,
    read_one=own.reader(one),
    recommend=REPORT,
    why="peer-to-peer through an IOMMU that translates is not supported on bare metal; with pt virtual machines stay isolated",
    cost="hangs, wrong data or slow copies between GPUs",
    evidence="CUDA programming guide, NVIDIA's notes on PCIe multi-GPU systems; Proxmox VE recommends iommu=pt too",
    persists="kernel command line",
)
