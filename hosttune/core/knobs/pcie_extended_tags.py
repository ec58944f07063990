# SPDX-License-Identifier: Apache-2.0
"""Whether each GPU numbers its requests with 8 bits (256 in flight) instead of 5 (32): bit 8 of Device Control. The kernel sets
it where the whole way can (drivers/pci/probe.c); forcing it over an old bridge hangs, so hosttune never writes it."""

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
    if not express.extended_tags_supported:
        return Reading(skip="it has no extended tags")
    return Reading("on" if express.extended_tags else "off")


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written."""
    raise Refused(
        "the kernel decides it for the whole way", subject, "journalctl -k -g 'Extended Tags'  # names what has none"
    )


PCIE_EXTENDED_TAGS = gpu_report(
    id="HT207",
    name="pcie-extended-tags",
    title="extended tags",
    want="on",
    step=step,
    one=one,
    why="32 requests in flight cannot fill a Gen4 or Gen5 x16 link with reads",
    cost="host-to-device copies below the link's speed",
    evidence="Linux drivers/pci/probe.c, pci_configure_extended_tags",
    persists="the kernel at each boot",
)
