# SPDX-License-Identifier: Apache-2.0
"""PCIe MaxReadReq of each GPU function: Device Control bits 14:12, written by a masked setpci, read back.

It governs reads that the GPU issues itself (host-to-device DMA, NCCL's shared-memory transport). The register is lost at
every reboot and after a driver-internal GPU reset.
"""

from __future__ import annotations

from typing import Dict

from ..door.host import Host
from ..gpu import own
from ..model import OPT_IN, Knob, Reading, Refused, Step
from ..pci import bus
from ..pci import express as pci_express

SIZES = ("128", "256", "512", "1024", "2048", "4096")


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: size in bytes} of each NVIDIA GPU function. A GPU that belongs to a virtual machine is a skip."""
    return own.each(host, one)


def one(host: Host, bdf: str) -> Reading:
    """The size in bytes of one GPU. Raises Unreadable, OSError."""
    express = pci_express.express(pci_express.config(host, bdf))
    if express is None:
        return Reading(skip="has no PCI Express capability")
    return Reading(str(express.max_read_request or "a reserved code"))


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """The masked write. Refused where it would be unsafe or cannot work; deferred while the GPU computes."""
    _refuse_machine(host)
    _refuse_policy(host)
    wait(host, subject)
    undo = pci_express.set_max_read_request(subject, int(have)) if have in SIZES else ()
    argv = pci_express.set_max_read_request(subject, int(want))
    return Step(ID, subject, "run", "%s MaxReadReq" % subject, have, want, argv, undo)


def wait(host: Host, subject: str) -> None:
    """Refused while the register must not or cannot be written."""
    own.refuse_write(host, (subject,), NAME)


def _refuse_machine(host: Host) -> None:
    """Some host bridges of other machines (Loongson) fail on larger requests; their kernel keeps them small for a reason."""
    machine = host.uname()[2]
    if machine != "x86_64":
        raise Refused("it is only written on x86-64, this is %s" % machine, "uname -m", "# leave MaxReadReq alone")


def _refuse_policy(host: Host) -> None:
    """Under this policy a device may have a smaller MaxPayload than the port above it: then MaxReadReq must not be larger."""
    if bus.bus_policy(host) == "perf":
        raise Refused(
            "the kernel runs with pci=pcie_bus_perf, under which MaxReadReq must not exceed MaxPayload",
            "/proc/cmdline",
            "# boot with pci=pcie_bus_safe in place of it, or leave MaxReadReq alone",
        )


def check(want: str) -> str:
    """A power of two from 128 to 4096."""
    return "" if want in SIZES else "%s is none of %s" % (want, ", ".join(SIZES))


ID, NAME = "HT201", "pcie-max-read-request"
PCIE_MAX_READ_REQUEST = Knob(
    id=ID,
    name=NAME,
    title="MaxReadReq",
    want="4096",
    read=read,
    step=step,
    check=check,
    skip=own.skip,
    read_one=own.reader(one),
    wait=wait,
    recommend=OPT_IN,
    why="larger read requests mean fewer requests for the same host-to-device copy; measure it on your host before you credit it",
    cost="nothing that was measured: it governs what the GPU reads from host memory, not what GPUs write to each other",
    evidence="in pcie-inference, from a bundle that gained; the one public A/B on this GPU class saw no change from 128 to 4096",
    persists="boot unit: the register is lost at each reboot, and by a GPU reset of the driver",
    if_ignored="the kernel refuses the write (setpci exits 0 all the same), or the GPU keeps its own value",
)
