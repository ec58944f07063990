# SPDX-License-Identifier: Apache-2.0
"""What is declared, kept while the machine runs: a GPU that comes back, a driver that is bound, a module that is loaded bring
registers and device numbers back to their defaults, and nobody is there to look.

On such an event the settings of the profile are looked at and put right, as at boot and by its `mode`: journalled, read back,
and not while a GPU computes. Then once more, some seconds later: udev rules and the driver's own start come after the event.
A reset inside the driver is announced by nobody; hosttune-recheck finds what it left.
"""

from __future__ import annotations

from typing import Callable, List, Optional

from . import boot
from .door.host import Host, errname
from .model import Refused, Report
from .uevents import LOST, Event

AGAIN = (2.0, 10.0, 60.0)
"""Seconds after which is looked again, as long as something is not as wanted; the first also when all is well."""
ACTIONS = ("add", "bind", "change")
"""change: the PCI core tells an error recovery, which resets the device, by it (drivers/pci/pcie/err.c)."""

Wait = Callable[[Optional[float]], Optional[List[Event]]]
"""Seconds, or None for ever -> events; [] when none came; None when the watch shall end."""


def wakes(event: Event) -> bool:
    """Whether an event may have changed what hosttune keeps: one of an NVIDIA function, or a module of its driver."""
    if event is LOST:
        return True
    if event.get("ACTION") not in ACTIONS:
        return False
    if event.get("SUBSYSTEM") == "module":
        return event.get("ACTION") == "add" and event.get("DEVPATH", "").startswith("/module/nvidia")
    return event.get("SUBSYSTEM") == "pci" and event.get("PCI_ID", "").startswith("10DE:")


def words(events: List[Event]) -> str:
    """`bind 0000:11:00.0 (and 7 more)`."""
    first = events[0]
    what = first.get("PCI_SLOT_NAME") or first.get("DEVPATH", "").rpartition("/")[2]
    more = " (and %d more)" % (len(events) - 1) if len(events) > 1 else ""
    return ("%s %s" % (first.get("ACTION", "?"), what)).strip() + more


def watch(host: Host, say: boot.Say, wait: Wait) -> int:
    """Until `wait` says None. Each look that changed something, or found something that it could not mend, is told."""
    say("watching: NVIDIA GPUs on PCI, modules of the driver")
    keep(host, say, "start", [])
    again: List[float] = []
    while True:
        events = wait(again[0] if again else None)
        if events is None:
            return 0
        why = words(events) if events else "once more"
        if events:
            again = list(AGAIN)
        elif again:
            again.pop(0)
        well = keep(host, say, why, events)
        if well and not events:
            again = []
        elif not well and not again:
            say("left as it is: the next event, hosttune-recheck or `hosttune apply` will see to it")


def keep(host: Host, say: boot.Say, why: str, events: List[Event]) -> bool:
    """Look, put right, tell. Whether all is as wanted now. A bad profile is told, and ends no watch."""
    told: List[str] = []
    try:
        profile = boot.declared(host, told.append)
        if profile is None:
            return True
        reports = boot.knobs(host, profile, which=boot.askable(host))
        if any(event.get("DEVPATH") == "/module/nvidia_uvm" for event in events):
            reports += boot.containers(
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
    return not any(boot.wrong(report) for report in reports)


def _tell(reports: List[Report], dry: bool, why: str, say: boot.Say) -> None:
    lines = [line for report in reports for line in boot.lines(report, dry)]
    if lines:
        say("%s:" % why)
        for line in lines:
            say("  " + line)
