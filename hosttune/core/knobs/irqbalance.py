# SPDX-License-Identifier: Apache-2.0
"""The irqbalance daemon, which moves interrupts between CPUs.

Stopped, it leaves all interrupts where they are. Read without starting a program: its cgroup has processes while it runs,
and a link in multi-user.target.wants starts it at boot.
"""

from __future__ import annotations

from typing import Dict

from ..door.host import Host, list_or_empty, read_or_none
from ..model import OPT_IN, Knob, Reading, Step
from . import shape_kept

ID, UNIT = "HT117", "irqbalance.service"
CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
WANTS = "/etc/systemd/system/multi-user.target.wants"


def read(host: Host) -> Dict[str, Reading]:
    """{"now": on or off, "boot": on or off}."""
    runs = any(read_or_none(host, "%s/system.slice/%s/cgroup.procs" % (root, UNIT)) for root in CGROUPS)
    starts = UNIT in list_or_empty(host, WANTS)
    return {"now": Reading("on" if runs else "off"), "boot": Reading("on" if starts else "off")}


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """systemctl start, stop, enable or disable."""
    verbs = {"now": ("start", "stop"), "boot": ("enable", "disable")}[subject]
    do, undo = verbs if want == "on" else verbs[::-1]
    return Step(
        ID, subject, "run", "%s %s" % (UNIT, subject), have, want, ("systemctl", do, UNIT), ("systemctl", undo, UNIT)
    )


def skip(host: Host) -> str:
    """Not in a container, and not where it is not installed."""
    return shape_kept.of_the_host(host) or ("" if _installed(host) else "irqbalance is not installed")


def _installed(host: Host) -> bool:
    return any(UNIT in list_or_empty(host, folder) for folder in ("/usr/lib/systemd/system", "/lib/systemd/system"))


IRQBALANCE = Knob(
    id=ID,
    name="irqbalance",
    title="irqbalance",
    want="off",
    read=read,
    step=step,
    check=shape_kept.one_of("on", "off"),
    skip=skip,
    recommend=OPT_IN,
    why="interrupts of GPUs and NICs stay on the CPUs of their own node, where the driver has put them",
    cost="it has moved interrupts to the other node, and some that it was told to leave alone; off, nothing spreads them",
    evidence="reports of users (irqbalance issues 169, 297); no measurement on GPU servers was found",
    persists="systemctl enable, disable",
)
