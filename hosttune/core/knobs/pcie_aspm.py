# SPDX-License-Identifier: Apache-2.0
"""Power saving of PCIe links (ASPM): the kernel's policy, now and over a reboot, and each state of each GPU's link.

/sys/module/pcie_aspm/parameters/policy, and Documentation/ABI/testing/sysfs-bus-pci, link/*_aspm. pcie_aspm=off on the command
line does not turn it off: it keeps the kernel from touching what the firmware has set.
"""

from __future__ import annotations

from typing import Dict, List

from ..configured import cmdline
from ..door.host import Host, list_or_empty
from ..gpu import own
from ..model import OPT_IN, Knob, Reading, Refused, Step
from ..pci import bus
from . import shape_kept, shape_sysfs

POLICY = "/sys/module/pcie_aspm/parameters/policy"
KEPT = shape_sysfs.kept(
    "pcie-aspm",
    POLICY,
    lambda host: cmdline.value(host, "pcie_aspm.policy") or "",
    offered=POLICY,
    tlp={"PCIE_ASPM_ON_AC": {}},
)


def read(host: Host) -> Dict[str, Reading]:
    """{"policy now" and "policy boot": the kernel's, "BDF l1_aspm": on or off for each state that a GPU's link has}."""
    policy = shape_kept.readings(host, KEPT) or {"now": Reading(skip="the kernel was built without it")}
    found = {"policy " + part: reading for part, reading in policy.items()}
    for bdf, reading in own.each(host, lambda host, bdf: Reading(" ".join(_states(host, bdf)))).items():
        if not reading.have:
            found[bdf] = (
                reading if reading.skip or reading.error else Reading(skip="its link has no state of power saving")
            )
        for state in reading.have.split():
            found["%s %s" % (bdf, state)] = own.guarded(host, "%s %s" % (bdf, state), _one)
    return found


def _states(host: Host, bdf: str) -> List[str]:
    return [name for name in list_or_empty(host, "%s/%s/link" % (bus.DEVICES, bdf)) if name.endswith("_aspm")]


def _one(host: Host, subject: str) -> Reading:
    return Reading({"0": "off", "1": "on"}.get(host.read(_path(subject)).strip(), "unknown"))


def _path(subject: str) -> str:
    bdf, state = subject.split()
    return "%s/%s/link/%s" % (bus.DEVICES, bdf, state)


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """A write to sysfs, and a line of tmpfiles.d for the policy. Refused where the kernel was told to leave it alone."""
    if cmdline.value(host, "pcie_aspm") == "off":
        file, line = cmdline.edit(host, drop="pcie_aspm")
        raise Refused("pcie_aspm=off keeps the kernel from touching it (%s)" % file, cmdline.NOW, line)
    policy, _, part = subject.partition(" ")
    if policy == "policy":
        return shape_kept.step(host, KEPT, ID, subject, have, want, part)
    return Step(ID, subject, "poke", _path(subject), "1", "0")


ID = "HT211"
PCIE_ASPM = Knob(
    id=ID,
    name="pcie-aspm",
    title="link power saving",
    want="performance",
    read=read,
    step=step,
    check=lambda want: "" if want == "performance" else "%s cannot be wanted: performance" % want,
    skip=own.skip,
    recommend=OPT_IN,
    meets=lambda have, want: have in (want, "off"),
    why="a link that sleeps between two messages takes microseconds to wake up; the policy is for every device of the machine",
    cost="latency of small messages",
    evidence="Linux kernel-parameters, pcie_aspm; most servers' firmware has it off for slots: then nothing changes",
    persists=KEPT.setting.file,
    if_ignored="the firmware keeps ASPM to itself",
)
