# SPDX-License-Identifier: Apache-2.0
"""What lives on when its files are taken back: revert ends no process and frees no memory, but says what is left."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from . import units
from .catalogue import finding
from .door.host import Host
from .model import WARN, Finding, Hint, Refused, Step
from .place import Place, split
from .stage import tmpfs
from .stage.manifest import MOUNT
from .stage.space import size_text


def left(host: Host, steps: Sequence[Step]) -> List[Finding]:
    """A warning for each engine that runs without its unit, and for models in memory, after these steps of a revert (or, in
    a dry run, before them). Each has the command that ends it."""
    gone = [step.target for step in steps if step.effect == "replace" and step.after is None]
    found = [_running(*split(host, target)) for target in gone]
    if tmpfs.UNIT in gone:
        found.append(_mounted(host))
    return [f for f in found if f]


def _running(place: Place, path: str) -> Optional[Finding]:
    folder, _, unit = path.rpartition("/")
    if folder != units.FOLDER or not units.is_engine(unit):
        return None
    try:
        show = place.ask("look", unit=unit)["show"]
    except (Refused, OSError):
        return None  # its container does not run any more, and so does nothing in it
    if show.get("ActiveState") not in ("active", "activating"):
        return None
    name = unit[len("hosttune-"):-len(".service")]
    hint = Hint("systemctl stop %s" % unit, place.machine, "ends it and all its processes", "restart")
    return finding("HT610", WARN, name, "it runs (process %s), and goes on without its unit file" % show.get("MainPID"),
                   machine=place.machine, hint=hint)


def _mounted(host: Host) -> Optional[Finding]:
    try:
        mounted = tmpfs.see(host).mounted
    except (Refused, OSError):
        return None
    if mounted is None:
        return None
    hint = Hint("umount %s" % MOUNT, "host", "frees that memory, once no engine has it mapped", "apply")
    return finding("HT507", WARN, MOUNT, "it stays mounted, with %s of models" % size_text(mounted.used), hint=hint)


def told(findings: Sequence[Finding]) -> Tuple[str, ...]:
    """A line for each of these, with its command."""
    return tuple("%s %s: %s; to end that, on %s: %s" % (f.id, f.subject, f.summary, f.machine, f.hint.command)
                 for f in findings if f.status == WARN)
