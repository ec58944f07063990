# SPDX-License-Identifier: Apache-2.0
"""ACS redirect of each port above a GPU: bits 2, 3 and 5 of ACS Control, written by a masked setpci, read back.

With redirect on, what one GPU writes to another goes up to the root complex although a switch could turn it round. Without it
the devices below are no longer kept from each other: their IOMMU groups become one at the next boot, so it is refused where
a device of a virtual machine is among them. Lost at every reboot. Source: include/uapi/linux/pci_regs.h, drivers/iommu/iommu.c.
"""

from __future__ import annotations

from typing import Dict

from ..door.host import Host
from ..gpu import own
from ..model import OPT_IN, Knob, Reading, Refused, Step
from ..pci import bus, express

SIZE = 4096


def read(host: Host) -> Dict[str, Reading]:
    """{port: what it redirects ("request+completion"), or "off"}. A port without ACS redirects nothing and is a skip."""
    return own.ports(host, one)


def one(host: Host, bdf: str) -> Reading:
    """Of one port. Raises Unreadable, OSError."""
    acs = express.acs(express.config(host, bdf, SIZE))
    return Reading(skip="has no ACS: it redirects nothing") if acs is None else Reading(acs.redirects)


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """The masked write. Refused where it would take a virtual machine's device out of its own group; deferred while a GPU
    below the port computes."""
    _refuse_virtual_machines(host, subject)
    wait(host, subject)
    try:
        acs = express.acs(express.config(host, subject, SIZE))
    except express.Unreadable as e:
        raise Refused(str(e), subject) from None
    old = acs.control & express.ACS_REDIRECT if acs else 0
    argv, undo = (express.setpci(subject, "ECAP_ACS+6", value, express.ACS_REDIRECT) for value in (0, old))
    return Step(ID, subject, "run", "%s ACS redirect" % subject, have, want, argv, undo)


def wait(host: Host, subject: str) -> None:
    """Refused while a GPU below the port computes, or nothing can be written."""
    below = [gpu.bdf for gpu in bus.gpus(host) if subject in bus.ports_above(host, gpu.bdf)]
    own.refuse_write(host, below, NAME)


def _refuse_virtual_machines(host: Host, port: str) -> None:
    """Groups are made of all that can reach each other: what is below this root port, and below its sisters of one slot."""
    slot = _slot_of_root(host, port)
    assigned = bus.vm_assigned(host)
    for bdf in host.list(bus.DEVICES):
        if _slot_of_root(host, bdf) != slot:
            continue
        place = assigned.get(bus.device_of(bdf)) or ("vfio-pci" if bus.driver(host, bdf) == "vfio-pci" else "")
        if place:
            raise Refused(
                "%s belongs to a virtual machine (%s), and its IOMMU group would become one with the GPUs'"
                % (bdf, place),
                port,
                "# move it to another root port, or leave ACS on",
            )


def _slot_of_root(host: Host, bdf: str) -> str:
    return bus.device_of(([bdf] + bus.ports_above(host, bdf))[-1])


ID, NAME = "HT208", "pcie-acs"
PCIE_ACS = Knob(
    id=ID,
    name=NAME,
    title="ACS redirect",
    want="off",
    read=read,
    step=step,
    check=lambda want: "" if want == "off" else "%s cannot be wanted: off (to have it back: hosttune revert)" % want,
    skip=own.skip,
    read_one=own.reader(one),
    wait=wait,
    recommend=OPT_IN,
    why="GPUs below one switch reach each other there and not over the root complex; virtual machines lose their isolation",
    cost="peer-to-peer at the speed of the uplink, or hangs under an IOMMU that translates",
    evidence="NCCL user guide, troubleshooting, PCI Access Control Services; no effect where no port lies between two GPUs",
    persists="boot unit: the register is lost at each reboot",
    if_ignored="the kernel refuses the write (setpci exits 0 all the same), or the port keeps its own value",
)
