# SPDX-License-Identifier: Apache-2.0
"""Idle states (C-states) by the time that a CPU needs to wake up from them: those above the wanted latency are disabled.

Source: Documentation/admin-guide/pm/cpuidle.rst. State 0 polls and wakes up in no time, so one state always remains. A larger
want does not give a disabled state back; `hosttune revert` does.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple

from ..door.host import Host, list_or_empty
from ..model import OPT_IN, Knob, Reading, Step
from . import shape_kept, shape_sysfs
from .shape_kept import Kept

ID, NAME = "HT116", "cpu-idle-latency"
FIRST = "/sys/devices/system/cpu/cpu0/cpuidle"


class State(NamedTuple):
    """An idle state of all CPUs: its folder's name, its own name, microseconds to wake up, and its file `disable`."""

    folder: str
    name: str
    latency: int
    kept: Kept


def states(host: Host) -> List[State]:
    """The idle states of the first CPU, which stand for those of all."""
    return [
        State(
            folder,
            host.read("%s/%s/name" % (FIRST, folder)).strip(),
            int(host.read("%s/%s/latency" % (FIRST, folder))),
            shape_sysfs.kept("%s-%s" % (NAME, folder), "/sys/devices/system/cpu/cpu*/cpuidle/%s/disable" % folder,
                             shape_kept.always("0"), meets=lambda have, want: have == want),
        )
        for folder in list_or_empty(host, FIRST)
    ]  # fmt: skip


def read(host: Host) -> Dict[str, Reading]:
    """{"state2 C2 now": "800" or "off", "state2 C2 boot": ..}; one more subject for each CPU that differs."""
    found = {}
    for state in states(host):
        if state.latency:
            for part, seen in shape_kept.readings(host, state.kept).items():
                have = "off" if seen.have == "1" else str(state.latency)
                found["%s %s %s" % (state.folder, state.name, part)] = Reading(have, where=seen.where)
    return found


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """The state of this subject is disabled."""
    folder, _, part = subject.partition(" ")
    state = next(each for each in states(host) if each.folder == folder)
    return shape_kept.step(host, state.kept, ID, subject, "0", "1", part.rpartition(" ")[2])


def meets(have: str, want: str) -> bool:
    """Disabled, or quick enough."""
    return have == "off" or int(have) <= int(want)


def skip(host: Host) -> str:
    """Not in a container, and not without idle states."""
    return shape_kept.of_the_host(host) or (
        "" if list_or_empty(host, FIRST) else "this machine shows no idle states (a virtual machine?)"
    )


CPU_IDLE_LATENCY = Knob(
    id=ID,
    name=NAME,
    title="an idle state's latency in us",
    want="99",
    read=read,
    step=step,
    check=shape_kept.whole_number(0, 1000000),
    skip=skip,
    recommend=OPT_IN,
    meets=meets,
    why="the thread that feeds a GPU sleeps between two steps, and wakes up late from a deep idle state",
    cost="too high: a late start of each step; too low: more power, more heat, and less room for boost",
    evidence="tuned's accelerator-performance profile uses 99 us; no measurement on GPU servers was found",
    persists="/etc/tmpfiles.d/hosttune-%s-*.conf" % NAME,
)
