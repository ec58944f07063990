# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel may put an idle GPU, or a port above it, to sleep: power/control in sysfs.

Documentation/ABI/testing/sysfs-devices-power. `on` keeps it awake, `auto` lets its driver decide (for a GPU: runtime D3).
"""

from __future__ import annotations

import re
from typing import Dict

from .. import gpus, own_gpus, pci
from ..host import Host, read_or_none
from ..model import OPT_IN, Knob, Reading, Step

CHOICES = ("on", "auto")


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: on or auto} of each GPU and each port above one."""
    return own_gpus.with_ports(host, one)


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
    return "%s/%s/power/control" % (pci.DEVICES, bdf)


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """A write to sysfs."""
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
    skip=own_gpus.skip,
    read_one=own_gpus.reader(one),
    recommend=OPT_IN,
    why="a GPU or port that slept trains its link anew, and on some switch boards drops off the bus then",
    cost="links that flap; `on` costs watts at idle",
    evidence="community reports of surprise-down links on switch boards; off on most servers already",
    persists="boot unit",
    if_ignored="a udev rule or the driver has set it back",
)
