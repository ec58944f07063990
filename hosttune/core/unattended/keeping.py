# SPDX-License-Identifier: Apache-2.0
"""What is declared for this machine, held against it and put right: the same at a boot, on an event and by the timer."""

from __future__ import annotations

import functools
import json
from typing import Callable, List, Mapping, Optional

from .. import engine
from ..door.host import Host, read_or_none
from ..knobs import BY_ID, KNOBS, boot_units
from ..model import Finding, Knob, Refused, Report
from ..task import fixes
from ..wanted.places import json_lines
from ..wanted.profile import PATH, Profile, validate

OFF = "/etc/hosttune/off"
QUORUM_SECONDS = 60
"""How long a boot waits for /etc/pve to be writable. The unit's own limit is longer."""

Say = Callable[[str], None]
"""Takes a line for the machine's journal."""

def declared(host: Host, say: Say) -> Optional[Profile]:
    """The profile of this machine; None, said why, when hosttune is off or nothing is wanted. Refused for a bad one."""
    if "hosttune=off" in (read_or_none(host, "/proc/cmdline") or "").split() or read_or_none(host, OFF) is not None:
        say("off: by hosttune=off on the kernel command line or by %s; nothing is done" % OFF)
        return None
    text = read_or_none(host, PATH)
    if text is None:
        say("there is no %s: nothing is wanted" % PATH)
        return None
    try:
        data = json.loads(text)
    except ValueError:
        raise Refused("this is not JSON", PATH, "ansible-playbook hosttune.hosttune.site writes it anew") from None
    return validate(data, PATH, KNOBS, json_lines(text, PATH))


def knobs(
    host: Host,
    profile: Profile,
    dry: bool = False,
    which: Callable[[Knob], bool] = lambda knob: True,
    known: Mapping[str, Knob] = KNOBS,
) -> List[Report]:
    """The settings of the profile, put right unless its mode is plan, or dry."""
    declared = {name: want for name, want in (profile.knobs or {}).items() if name != boot_units.NAME}
    wants = {name: want for name, want in engine.wants_of((), declared, known).items() if which(known[name])}
    done = engine.tune(host, wants, known, BY_ID, dry or profile.mode == "plan")
    return [Report("boot knobs", findings=tuple(done.findings), steps=tuple(done.steps))]


def containers(host: Host, profile: Profile, say: Say, dry: bool = False) -> List[Report]:
    """The device rules of the profile's containers, put right without a restart unless its mode is plan, or dry."""
    from ..lxc import fleet, outlook, patience, vms  # the other stages start without them

    given = vms.assigned(host) if profile.containers else {}
    orders = {
        ct_id: fleet.Order(functools.partial(outlook.wanted_of, host, one, given=given))
        for ct_id, one in profile.containers.items()
    }
    # Only what is stale is written, and only then the quorum is waited for.
    quorum = patience.Patience(QUORUM_SECONDS, say)
    return fleet.sync_each(host, orders, dry or profile.mode == "plan", quorum=quorum)


def askable(host: Host) -> Callable[[Knob], bool]:
    """Which knobs may be asked now: those that ask the driver only where it is loaded, since to ask it would load it."""
    loaded = read_or_none(host, "/proc/driver/nvidia/version") is not None
    return lambda knob: loaded or not (knob.after_driver or knob.starts)


def wrong(report: Report) -> List[Finding]:
    """What is not as wanted, or could not be told."""
    return [f for f in report.findings if f.status in ("fail", "error") and not f.ignored]


def lines(report: Report, dry: bool) -> List[str]:
    """For the machine's journal: what was done (dry: would be), and what is wrong with its fix."""
    would = "would change" if dry else "changed"
    told = ["%s %s" % (would, step.target) for step in report.steps]
    told += ["%s: %s" % ("would run" if dry else "ran", " ".join(action.argv)) for action in report.actions]
    return told + fixes(report.findings)
