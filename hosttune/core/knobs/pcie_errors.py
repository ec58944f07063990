# SPDX-License-Identifier: Apache-2.0
"""PCIe errors (AER) that each GPU and each port above it has counted since boot. A count is no fault; one that rises is."""

from __future__ import annotations

from typing import Dict

from ..door.host import Host
from ..gpu import own
from ..model import REPORT, Knob, Reading, Refused, Step
from ..pci import errors


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: "0", or "12 correctable (BadTLP 10, Rollover 2)"}: a broken link is reported by the end that receives."""
    return own.with_ports(host, one)


def one(host: Host, bdf: str) -> Reading:
    """Of one function, the worst kind first. Raises OSError."""
    counts = errors.counts(host, bdf)
    if counts is None:
        return Reading(skip="the kernel counts no errors of it (no AER, or the firmware keeps it)")
    told = [
        "%d %s (%s)" % (sum(kind.values()), name, ", ".join("%s %d" % each for each in kind.items()))
        for name, kind in counts.items()
        if kind
    ]
    return Reading(", ".join(told) or "0")


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written: the kernel has no way to clear them, and they are evidence."""
    raise Refused(
        "this is hardware",
        subject,
        "journalctl -k -g AER  # check again after an hour of load: if it has risen, reseat the card, riser or cable",
    )


PCIE_ERRORS = Knob(
    id="HT205",
    name="pcie-errors",
    title="PCIe errors since boot",
    want="0",
    read=read,
    step=step,
    check=lambda want: "" if want == "0" else "%s cannot be wanted: 0" % want,
    skip=own.skip,
    read_one=own.reader(one),
    recommend=REPORT,
    why="each corrected error is a packet that was sent again; many of them stall a rank, an uncorrected one loses the GPU",
    cost="stalls that look like a slow engine, then a GPU off the bus",
    evidence="Linux pcieaer-howto; a community log of ranks that stalled while corrected errors rose",
    persists="counted anew at each boot",
    passing=True,
)
