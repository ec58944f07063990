# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel may put an idle GPU, or a port above it, to sleep: power/control in sysfs.

Documentation/ABI/testing/sysfs-devices-power. `on` keeps it awake, `auto` lets its driver decide (for a GPU: runtime D3).
"""

from __future__ import annotations

import re
from typing import Dict

from ..configured import conflicts
from ..door.host import Host, read_or_none
from ..gpu import gpus, own
from ..model import OPT_IN, Knob, Reading, Refused, Step
from ..pci import bus

CHOICES = ("on", "auto")
OF_GPUS = r'^(?!.*ACTION=="(?:unbind|remove)")(?:.*%s|(?=.*SUBSYSTEM=="pci")(?!.*ATTRS?\{vendor\}))' % bus.NVIDIA
"""A udev rule for NVIDIA's functions, or for all of PCI: USB devices and disks have a file of that name, too. What is done once
a driver has left a device undoes nothing."""


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: on or auto} of each GPU and each port above one."""
    return own.with_ports(host, one)


def one(host: Host, bdf: str) -> Reading:
    """Of one function; where the driver tells it, whether the GPU sleeps by itself. Raises OSError."""
    control = read_or_none(host, _path(bdf))
    if control is None:
        return Reading(skip="it has no power control")
    told = re.search(
        r"^Runtime D3 status:\s*(.+?)\s*$", read_or_none(host, "%s/%s/power" % (gpus.FOLDER, bdf)) or "", re.MULTILINE
    )
    return Reading(control.strip(), where="runtime D3: %s" % told.group(1) if told else "")


def _path(bdf: str) -> str:
    return "%s/%s/power/control" % (bus.DEVICES, bdf)


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """A write to sysfs. Refused where somebody else sets it back: TLP, or a udev rule, as the driver's own package ships one."""
    setting = conflicts.Setting(_path(subject), file="", tlp={"RUNTIME_PM_ON_AC": {}}, udev=OF_GPUS)
    rivals = [claim for claim in conflicts.claims(host, setting) if claim.value != want]
    if rivals:
        last = rivals[-1]
        what = last.who + (" sets it" if last.value == conflicts.UNKNOWN else " sets it to " + last.value)
        raise Refused(what, last.where, last.way_out.replace("{want}", want))
    return Step(ID, subject, "poke", _path(subject), have, want)


ID = "HT213"
PCIE_POWER_CONTROL = Knob(
    id=ID,
    name="pcie-power-control",
    title="runtime power management",
    want="on",
    read=read,
    step=step,
    check=lambda want: "" if want in CHOICES else "%s is none of %s" % (want, ", ".join(CHOICES)),
    skip=own.skip,
    read_one=own.reader(one),
    recommend=OPT_IN,
    why="a GPU or port that slept trains its link anew, and on some switch boards drops off the bus then",
    cost="links that flap; `on` costs watts at idle",
    evidence="community reports of surprise-down links on switch boards; off on most servers already",
    persists="boot unit",
    if_ignored="something has set it back at once: look for udev rules with power/control",
)
