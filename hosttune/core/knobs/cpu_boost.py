# SPDX-License-Identifier: Apache-2.0
"""Frequencies above the nominal one (boost, turbo).

Source: Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst. intel_pstate has a file of its own, no_turbo, with the
sense turned round.
"""

from __future__ import annotations

from ..door.host import Host
from ..machine.sysfs import values
from ..model import REPORT
from .shape_kept import one_of
from .shape_sysfs import kept, sysfs_knob

BOOST, NO_TURBO = "/sys/devices/system/cpu/cpufreq/boost", "/sys/devices/system/cpu/intel_pstate/no_turbo"
ON, OFF = {"1": "on", "0": "off"}, {"0": "on", "1": "off"}


def _as_now(host: Host) -> str:
    """Where nothing sets it the firmware does, and what is there now is the firmware's."""
    words = {BOOST: ON, NO_TURBO: OFF}
    return next((words[path][raw] for path in words for raw in values(host, path).values() if raw in words[path]), "")


CPU_BOOST = sysfs_knob(
    id="HT115",
    name="cpu-boost",
    title="CPU boost",
    want="on",
    check=one_of("on", "off"),
    layouts=(
        kept(
            "cpu-boost",
            NO_TURBO,
            _as_now,
            OFF,
            tuned=(("cpu", "no_turbo"),),
            tlp={"CPU_BOOST_ON_AC": {"1": "0", "0": "1"}},
        ),
        kept("cpu-boost", BOOST, _as_now, ON, tuned=(("cpu", "boost"),), tlp={"CPU_BOOST_ON_AC": {}}),
    ),
    absent="this machine shows no boost (a virtual machine, or the firmware has turned it off)",
    recommend=REPORT,
    if_ignored="the firmware forbids it: look for boost or turbo in its setup",
    why="one thread feeds each GPU, and its speed is that of one core",
    cost="off: cores stay at their nominal frequency, often half of what they can do",
    evidence="one community host: with the governor performance, 1.5-1.8 to 3.3 GHz; kernel documentation",
)
