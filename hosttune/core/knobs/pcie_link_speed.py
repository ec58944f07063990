# SPDX-License-Identifier: Apache-2.0
"""Speed of every PCIe link from each GPU to its root port. An idle GPU's own link slows down by design (nvidia-smi's help
text says so), so that one is judged only while a process computes on the GPU; links of switches do not."""

from __future__ import annotations

from ..door.host import Host
from ..gpu import own as own_gpus
from ..model import Reading, Refused, Step
from ..pci import link as pci_link
from . import pcie_link_width
from .shape_gpu import gpu_report


def one(host: Host, bdf: str) -> Reading:
    """ "32 of 32 GT/s", or "16 of 32 GT/s at 0000:41:00.0" of one GPU: the first slow link, else its own. Raises OSError."""
    links = pci_link.links(host, bdf)
    own = links[0]
    if not own.speed:
        return Reading(skip="no PCIe link can be seen (a virtual machine?)")
    for link in links[1:]:
        if 0 < link.below.speed < link.speed:
            return Reading("%s at %s" % (_text(link), link.bdf))
    if own.below.speed < own.speed and not own_gpus.computing(host, bdf):
        return Reading(_text(own), skip="link speed is %s; an idle GPU lowers it: look while it computes" % _text(own))
    return Reading(_text(own))


def _text(link: pci_link.Link) -> str:
    return "%g of %g GT/s" % (link.below.speed, link.speed)


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written: it is hardware."""
    raise Refused(
        "this is hardware",
        subject,
        "hosttune check pcie-errors  # then reseat the card, riser or cable; firmware: slot speed",
    )


WANT = "full speed"
PCIE_LINK_SPEED = gpu_report(
    id="HT204",
    name="pcie-link-speed",
    title="link speed",
    want=WANT,
    step=step,
    one=one,
    meets=pcie_link_width.meets,
    why="each generation less is half the bandwidth",
    cost="tensor parallel engines run at the pace of the slowest link",
    evidence="Linux ABI sysfs-bus-pci; a link that trains down under load has a bad riser, cable or retimer",
    persists="hardware",
    passing=True,
)
