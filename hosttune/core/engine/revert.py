# SPDX-License-Identifier: Apache-2.0
"""Changes taken back, newest first, byte for byte, where they are still what hosttune wrote."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Dict, List, Mapping, Optional, Tuple

from .. import journal
from ..door.host import Host
from ..journal import Entry
from ..model import Finding, Knob, Refused, Step
from .apply import TURN_SECONDS, recover
from .failures import Unclosed, failed, short, unclosed
from .step import do, now_of


def revertible(host: Host, to: int = 0) -> List[Entry]:
    """Done entries after number `to`, newest first: what revert would take back."""
    from ..lxc import promise

    done = [e for e in reversed(journal.entries(host)) if e.state == "done" and e.number > to and not e.reverts]
    return [e for e in done if not promise.is_one(e.step)]


def revert(
    host: Host, knobs: Mapping[str, Knob], to: int = 0, dry_run: bool = False
) -> Tuple[List[Step], List[Finding]]:
    """Take back every change after entry `to`, newest first, byte for byte. Returns the steps done and what was refused.

    A value that is no longer what hosttune wrote is somebody else's by now: refused, with the line that restores it. Of a
    container's config, which Proxmox VE rewrites, the lines of that change are taken back and all others stay.
    """
    steps: List[Step] = []
    found: List[Finding] = []
    journal.refuse_foreign(host)
    if to and to not in {e.number for e in journal.entries(host)}:
        raise Refused("there is no entry %d" % to, journal.JOURNAL, "hosttune journal lists them")
    if not revertible(host, to) and not any(e.state == "intent" for e in journal.entries(host)):
        return steps, found
    if dry_run:
        return [_foreseen(host, e, knobs) for e in revertible(host, to)], found
    with host.lock(journal.LOCK, TURN_SECONDS):
        found += recover(host, knobs)
        earlier: Dict[str, Optional[str]] = {}  # of each value that is taken back: what stood there before its later changes
        for entry in revertible(host, to):
            back = undone(entry.step)
            try:
                now = now_of(host, entry.step, knobs)
                gone = now != entry.step.after and now == earlier.get(entry.step.target, entry.step.after)
                if entry.step.effect in ("poke", "run"):
                    earlier[entry.step.target] = entry.step.before
                if now == entry.step.before or gone:  # a reboot, or a person, was faster: nothing of this change is left
                    journal.end(host, entry.number, "reverted")
                    continue
                if now != entry.step.after:
                    back = replace(back, before=now)  # if it is refused, this is what is told
                    back = _by_content(entry, now)
                    if back.after == now:  # somebody has taken it out already
                        journal.end(host, entry.number, "reverted")
                        continue
                if back.effect == "run" and not back.argv:
                    raise Refused("what was there before cannot be written again", entry.step.target)
                _refuse_while_it_waits(host, knobs.get(back.knob), back.subject)
                do(host, back, knobs, 1 + journal.last(host), reverts=entry.number)
                steps.append(back)
                journal.end(host, entry.number, "reverted")
            except Unclosed as e:
                steps.append(back)
                found.append(unclosed(back, e))
            except (OSError, Refused) as e:
                found.append(failed(host, back, e, knobs))
    return steps, found


def _refuse_while_it_waits(host: Host, knob: Optional[Knob], subject: str) -> None:
    try:
        if knob and knob.wait:
            knob.wait(host, subject)
    except Refused as e:  # its way out is that of an apply
        raise Refused(e.what, e.where, "hosttune revert  # once that is over") from None


def _foreseen(host: Host, entry: Entry, knobs: Mapping[str, Knob]) -> Step:
    """What would take a change back, as far as it can be told without doing it."""
    if entry.step.effect == "replace":
        with contextlib.suppress(OSError, Refused):
            now = now_of(host, entry.step, knobs)
            if now not in (entry.step.after, entry.step.before):
                return _by_content(entry, now)
    return undone(entry.step)


def _by_content(entry: Entry, now: Optional[str]) -> Step:
    """What takes an edit out of a container's config that was written anew since: Proxmox VE does so at each backup. Any
    other file is its last writer's: Refused."""
    from ..lxc import undo

    step = entry.step
    if now is None or step.before is None or step.after is None or not undo.applies(step.effect, step.subject, step.target):
        what = "it is no longer what hosttune wrote (now %s, wrote %s)" % (short(now), short(step.after))
        raise Refused(what, step.target, journal.restore_line(entry))
    return replace(undone(step), before=now, after=undo.taken_out(now, step.before, step.after, step.target))


def undone(step: Step) -> Step:
    """The step that takes a step back."""
    return replace(step, before=step.after, after=step.before, argv=step.undo, undo=step.argv)
