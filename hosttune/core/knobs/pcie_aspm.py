# SPDX-License-Identifier: Apache-2.0
"""Power saving of PCIe links (ASPM): the kernel's policy, and each state of each GPU's link.

/sys/module/pcie_aspm/parameters/policy, and Documentation/ABI/testing/sysfs-bus-pci, link/*_aspm. pcie_aspm=off on the command
line does not turn it off: it keeps the kernel from touching what the firmware has set.
"""

from __future__ import annotations

from typing import Dict, List

from .. import cmdline, own_gpus, pci, sysfs
from ..host import Host, list_or_empty, read_or_none
from ..model import OPT_IN, Knob, Reading, Refused, Step

POLICY = "/sys/module/pcie_aspm/parameters/policy"


def read(host: Host) -> Dict[str, Reading]:
    """{"policy": the kernel's, "BDF l1_aspm": on or off for each state that a GPU's link has}."""
    policy = read_or_none(host, POLICY)
    found = {
        "policy": Reading(skip="the kernel was built without it") if policy is None else Reading(sysfs.in_use(policy))
    }
    for bdf, reading in own_gpus.each(host, lambda host, bdf: Reading(" ".join(_states(host, bdf)))).items():
        if not reading.have:
            found[bdf] = (
                reading if reading.skip or reading.error else Reading(skip="its link has no state of power saving")
            )
        for state in reading.have.split():
            found["%s %s" % (bdf, state)] = one(host, "%s %s" % (bdf, state))
    return found


def _states(host: Host, bdf: str) -> List[str]:
    return [name for name in list_or_empty(host, "%s/%s/link" % (pci.DEVICES, bdf)) if name.endswith("_aspm")]


def one(host: Host, subject: str) -> Reading:
    """Of the policy or one state."""
    if subject == "policy":
        return Reading(sysfs.in_use(host.read(POLICY)))
    return own_gpus.guarded(
        host, subject, lambda host, subject: Reading(_WORDS.get(host.read(_path(subject)).strip(), "unknown"))
    )


def _path(subject: str) -> str:
    bdf, state = subject.split()
    return "%s/%s/link/%s" % (pci.DEVICES, bdf, state)


_WORDS = {"0": "off", "1": "on"}


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """A write to sysfs. Refused where the kernel was told to leave it alone."""
    if cmdline.value(host, "pcie_aspm") == "off":
        file, line = cmdline.edit(host, drop="pcie_aspm")
        raise Refused("pcie_aspm=off keeps the kernel from touching it (%s)" % file, cmdline.NOW, line)
    if subject == "policy":
        return Step(ID, subject, "poke", POLICY, have, want)
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
    skip=own_gpus.skip,
    read_one=one,
    recommend=OPT_IN,
    meets=lambda have, want: have in (want, "off"),
    why="a link that sleeps between two messages takes microseconds to wake up; the policy is for every device of the machine",
    cost="latency of small messages",
    evidence="Linux kernel-parameters, pcie_aspm; most servers' firmware has it off for slots: then nothing changes",
    persists="boot unit, or pcie_aspm.policy=performance on the kernel command line",
    if_ignored="the firmware keeps ASPM to itself",
)
