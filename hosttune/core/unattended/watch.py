# SPDX-License-Identifier: Apache-2.0
"""What is declared, kept while the machine runs: a GPU that comes back, a driver that is bound, a module that is loaded bring
registers and device numbers back to their defaults, and nobody is there to look.

On such an event the settings of the profile are looked at and put right, as at boot and by its `mode`: journalled, read back,
and not while a GPU computes. Then once more, some seconds later: udev rules and the driver's own start come after the event.
A reset inside the driver is announced by nobody. It is seen in a register that is other and that nobody wrote (registers.py):
looked for when a node of a GPU was closed (inotify.py), and each minute.
"""

from __future__ import annotations

import time
from typing import Callable, FrozenSet, List, Optional

from ..door.host import Host, errname
from ..knobs import KNOBS
from ..model import Refused, Report
from . import keeping
from .inotify import NODE
from .registers import KNOB, Registers, quiet
from .uevents import LOST, Event

AGAIN = (2.0, 10.0, 60.0)
"""Seconds after which is looked again, as long as something is not as wanted; the first also when all is well."""
PACE = 60.0
"""Seconds between two looks at registers when nothing is heard: a container's own node is another file, and is not."""
ACTIONS = ("add", "bind", "change")
"""change: the PCI core tells an error recovery, which resets the device, by it (drivers/pci/pcie/err.c)."""

Wait = Callable[[Optional[float]], Optional[List[Event]]]
"""Seconds, or None for ever -> events; [] when none came; None when the watch shall end."""
Listen = Callable[[bool], FrozenSet[str]]
"""Listen at the files of all GPUs that there are now -> addresses of those whose writers are heard. True: forget what was heard
so far, which was hosttune itself."""


def wakes(event: Event) -> bool:
    """Whether an event may have changed what hosttune keeps: one of an NVIDIA function, or a module of its driver."""
    if event is LOST or quiet(event):
        return True
    if event.get("ACTION") not in ACTIONS or event.get("DEVICE_ONLINE") == "0":
        return False  # DEVICE_ONLINE=0: an error recovery begins, or has failed
    if event.get("SUBSYSTEM") == "module":
        return event.get("ACTION") == "add" and event.get("DEVPATH", "").startswith("/module/nvidia")
    return event.get("SUBSYSTEM") == "pci" and event.get("PCI_ID", "").startswith("10DE:")


def words(events: List[Event]) -> str:
    """`bind 0000:11:00.0 (and 7 more)`."""
    first = events[0]
    what = first.get("PCI_SLOT_NAME") or first.get("DEVPATH", "").rpartition("/")[2]
    more = " (and %d more)" % (len(events) - 1) if len(events) > 1 else ""
    return ("%s %s" % (first.get("ACTION", "?"), what)).strip() + more


def watch(
    host: Host,
    say: keeping.Say,
    wait: Wait,
    listen: Listen = lambda forget: frozenset(),
    now: Callable[[], float] = time.monotonic,
) -> int:
    """Until `wait` says None. Each look that changed something, or found something that it could not mend, is told."""
    say("watching: NVIDIA GPUs on PCI, modules of the driver")
    registers = Registers(host)
    again: List[float] = []
    due, soon = 0.0, False
    keep(host, say, "start", [], registers, listen)
    while True:
        idle = None if not registers.watched else AGAIN[0] if soon else PACE
        events = wait(max(0.0, due - now()) if again else idle)
        if events is None:
            return 0
        announced = [event for event in events if not quiet(event)]
        soon = bool(events) and not announced  # a close is told before the driver has done what it does then
        if any(event["ACTION"] == NODE for event in events):
            registers.heard = listen(False)
        lost = registers.look(events, say, now())
        registers.came_back(announced)
        if announced or lost:
            again = list(AGAIN)
            why = words(announced) if announced else "%s was lost by %s" % (KNOB.title, ", ".join(lost))
            well = keep(host, say, why, announced, registers, listen)
        elif again and now() >= due:
            again.pop(0)
            well = keep(host, say, "once more", [], registers, listen)
            again = [] if well else again
        else:
            continue
        due = now() + again[0] if again else 0.0
        if not well and not again:
            say("left as it is: the next event, hosttune-recheck or `hosttune apply` will see to it")


def keep(host: Host, say: keeping.Say, why: str, events: List[Event], registers: Registers, listen: Listen) -> bool:
    """Look, put right, tell. Whether all is as wanted now. A bad profile is told, and ends no watch."""
    told: List[str] = []
    registers.unlearn()
    try:
        profile = keeping.declared(host, told.append)
        if profile is None:
            return True
        reports = keeping.knobs(host, profile, which=keeping.askable(host), known=registers.spare(KNOBS))
        registers.heard = listen(True)
        registers.learn([f for report in reports for f in report.findings])
        if any(event.get("DEVPATH") == "/module/nvidia_uvm" for event in events):
            reports += keeping.containers(
                host, profile, told.append
            )  # its number is a new one, and their rules name the old
    except Refused as e:
        say("%s: %s" % (why, e))
        return False
    except OSError as e:
        say("%s: %s: %s" % (why, e.filename or "", errname(e)))
        return False
    finally:
        host.effects.clear()  # a log for ever would grow for ever; the journal has them
    for line in told:
        say("%s: %s" % (why, line))
    _tell(reports, profile.mode == "plan", why, say)
    return not any(keeping.wrong(report) for report in reports)


def _tell(reports: List[Report], dry: bool, why: str, say: keeping.Say) -> None:
    lines = [line for report in reports for line in keeping.lines(report, dry)]
    if lines:
        say("%s:" % why)
        for line in lines:
            say("  " + line)
