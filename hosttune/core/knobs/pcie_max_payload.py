# SPDX-License-Identifier: Apache-2.0
"""PCIe MaxPayload on the way to each GPU: Device Control bits 7:5 of the GPU and of every port above it must be one size.

A function that sends larger packets than the other end takes makes malformed packets: a fatal error, a lost GPU. The kernel
makes the sizes one when it finds a device (drivers/pci/probe.c); hosttune never writes them.
"""

from __future__ import annotations

from ..door.host import Host
from ..gpu import own
from ..model import Reading, Refused, Step
from ..pci import bus
from ..pci import express as pci_express
from .shape_gpu import gpu_report


def one(host: Host, bdf: str) -> Reading:
    """The bytes of one GPU ("256"), and the first port above it that has another. Raises Unreadable, OSError."""
    way = [bdf] + bus.ports_above(host, bdf)
    found = [pci_express.express(pci_express.config(host, function)) for function in way]
    gpu, above = found[0], [(port, e) for port, e in zip(way[1:], found[1:]) if e]
    if gpu is None:
        return Reading(skip="has no PCI Express capability")
    if not above:
        return Reading(gpu.max_payload_text, skip=own.NO_PORT)
    smaller_is_meant = bus.bus_policy(host) == "perf"
    for port, express in above:
        if express.max_payload < gpu.max_payload or express.max_payload > gpu.max_payload and not smaller_is_meant:
            return Reading("%s under a port with %s (%s)" % (gpu.max_payload_text, express.max_payload_text, port))
    possible = min(e.max_payload_supported for e in [gpu] + [e for _, e in above])
    larger = possible > gpu.max_payload
    return Reading(
        gpu.max_payload_text, where="all on the way can take %d: the firmware chose less" % possible if larger else ""
    )


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written."""
    if bus.bus_policy(host) == "tune_off":
        way_out = "# take pcie_bus_tune_off out of pci= on the kernel command line, and reboot"
    else:
        way_out = "lspci -vv -s %s  # after a reboot: the kernel makes them one when it finds the device" % subject
    raise Refused("hosttune writes no MaxPayload", subject, way_out)


WANT = "equal"
PCIE_MAX_PAYLOAD = gpu_report(
    id="HT202",
    name="pcie-max-payload",
    title="MaxPayload",
    want=WANT,
    step=step,
    one=one,
    grave=True,
    meets=lambda have, want: have.isdigit(),
    why="an end that sends larger packets than the other takes makes malformed packets, which is a fatal error",
    cost="a GPU that is lost under load",
    evidence="Linux drivers/pci/probe.c, PCI Express base specification 7.5.3.4",
    persists="the kernel at each boot",
)
