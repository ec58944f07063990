# SPDX-License-Identifier: Apache-2.0
"""Lanes of every PCIe link from each GPU to its root port. They do not change at idle, so fewer than both ends can is a fault."""

from __future__ import annotations

from ..door.host import Host
from ..model import Reading, Refused, Step
from ..pci import link as pci_link
from .shape_gpu import gpu_report


def one(host: Host, bdf: str) -> Reading:
    """ "x16 of x16", or "x8 of x16 at 0000:41:00.0" of one GPU: the first link that lacks lanes, else its own. Raises OSError."""
    links = pci_link.links(host, bdf)
    own = links[0]
    if not own.lanes:
        return Reading(skip="no PCIe link can be seen (a virtual machine?)")
    if not own.below.width:
        return Reading(error="its link tells no width: does it still answer? lspci -vv -s %s" % bdf)
    for link in links:
        if 0 < link.below.width < link.lanes:
            place = "" if link is own else " at " + link.bdf
            return Reading("x%d of x%d%s" % (link.below.width, link.lanes, place), where=_ends(link))
    return Reading(
        "x%d of x%d" % (own.below.width, own.lanes), where=_ends(own) if own.lanes < own.below.max_width else ""
    )


def _ends(link: pci_link.Link) -> str:
    above = ", port %s x%d" % (link.port, link.above.max_width) if link.port else ""
    return "at most: %s x%d%s" % (link.bdf, link.below.max_width, above)


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written: it is hardware."""
    raise Refused(
        "this is hardware", subject, "hosttune check pcie-link-width pcie-errors  # once the card, riser or cable is reseated"
    )


def meets(have: str, want: str) -> bool:
    """Whether both numbers are one."""
    now, _, most = have.split()[:3]
    return now == most


WANT = "all lanes"
PCIE_LINK_WIDTH = gpu_report(
    id="HT209",
    name="pcie-link-width",
    title="link width",
    want=WANT,
    step=step,
    one=one,
    grave=True,
    meets=meets,
    why="half the lanes are half the bandwidth of everything that goes to or from this GPU",
    cost="tensor parallel engines run at the pace of the slowest link",
    evidence="Linux ABI sysfs-bus-pci: both ends tell what they can and what they do",
    persists="hardware",
)
