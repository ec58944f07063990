# SPDX-License-Identifier: Apache-2.0
"""Whether each GPU numbers its requests with 8 bits (256 in flight) instead of 5 (32): bit 8 of Device Control. The kernel sets
it where the whole way can (drivers/pci/probe.c); forcing it over an old bridge hangs, so hosttune never writes it."""

from __future__ import annotations

from typing import Dict

from .. import own_gpus, pci_express
from ..host import Host
from ..model import REPORT, Knob, Reading, Refused, Step


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: on or off} of each GPU."""
    return own_gpus.each(host, one)


def one(host: Host, bdf: str) -> Reading:
    """Of one GPU. Raises Unreadable, OSError."""
    express = pci_express.express(pci_express.config(host, bdf))
    if express is None:
        return Reading(skip="has no PCI Express capability")
    if not express.extended_tags_supported:
        return Reading(skip="it has no extended tags")
    return Reading("on" if express.extended_tags else "off")


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written."""
    raise Refused(
        "the kernel decides it for the whole way", subject, "journalctl -k -g 'Extended Tags' names what has none"
    )


PCIE_EXTENDED_TAGS = Knob(
    id="HT207",
    name="pcie-extended-tags",
    title="extended tags",
    want="on",
    read=read,
    step=step,
    check=lambda want: "" if want == "on" else "%s cannot be wanted: on" % want,
    skip=own_gpus.skip,
    read_one=own_gpus.reader(one),
    recommend=REPORT,
    why="32 requests in flight cannot fill a Gen4 or Gen5 x16 link with reads",
    cost="host-to-device copies below the link's speed",
    evidence="Linux drivers/pci/probe.c, pci_configure_extended_tags",
    persists="the kernel at each boot",
)
