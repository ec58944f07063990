# SPDX-License-Identifier: Apache-2.0
"""Simultaneous multithreading (hyper-threading): shown, since it changes every list of CPUs and every container's cpuset.

Source: Documentation/ABI/testing/sysfs-devices-system-cpu. No value is better for all: none is recommended.
"""

from __future__ import annotations

from typing import Dict, Tuple

from ..configured import cmdline
from ..door.host import Host, read_or_none
from ..model import Reading
from .shape_kept import one_of
from .shape_report import report_knob

FILE = "/sys/devices/system/cpu/smt/control"


def read(host: Host) -> Dict[str, Reading]:
    """{"now": on, off or forceoff}; a skip where the CPUs have none."""
    seen = host.read(FILE).strip()
    none = seen in ("notsupported", "notimplemented")
    return {"now": Reading(skip="these CPUs have none (%s)" % seen, where=FILE) if none else Reading(seen, where=FILE)}


def by_hand(host: Host, subject: str, want: str) -> Tuple[str, str]:
    """nosmt on the command line, or off it."""
    return cmdline.edit(host, add="nosmt") if want == "off" else cmdline.edit(host, drop="nosmt")


SMT = report_knob(
    id="HT118",
    name="smt",
    title="SMT",
    want="",
    check=one_of("on", "off"),
    read=read,
    by_hand=by_hand,
    absent=lambda host: "" if read_or_none(host, FILE) is not None else "this kernel does not tell",
    meets=lambda have, want: have.replace("forceoff", "off") == want,
    persists="kernel command line, or firmware",
    why="two threads of one core share its speed; turning SMT on or off changes the numbers of all CPUs",
    cost="CPU lists of units and containers that were made for the other state name CPUs that are not there",
    evidence="kernel documentation; no measurement on GPU servers was found",
)
