# SPDX-License-Identifier: Apache-2.0
"""See, judge, change: everything that any face may do with knobs and steps.

check, plan  see judge.py
apply    under one lock: finish or drop what a killed run left, then each step: intent, effect, read back, done
revert   the journal backwards, each file and value only if it is still what hosttune wrote
"""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from . import journal
from .catalogue import finding
from .door.glance import Glance
from .door.host import TEMP, Host, bytes_or_none, digest, errname, read_or_none
from .failures import Unclosed, failed, program_failed, short, unclosed, way_out
from .journal import Entry
from .judge import check, plan
from .machine import sysfs
from .model import WARN, Finding, Hint, Knob, Reading, Refused, Step

__all__ = ["check", "plan", "apply", "tune", "revert", "recover"]

TURN_SECONDS = 60
"""How long a run waits for another one: nvidia-persistenced alone may take half of that to make eight GPUs ready."""


def apply(host: Host, steps: Sequence[Step], knobs: Mapping[str, Knob], promises: Sequence[Step] = ()) -> List[Finding]:
    """Do the steps. Returns a finding for each one that did not stick or could not be written; the rest is silence.

    promises: what the caller does once the steps are done (lxc/promise.py). They stand in the journal before the first step,
    and are dropped again where one failed.

    Nothing is opened for writing when there are no steps. A failed step does not stop the others. Refused, with nothing
    changed, when hosttune's own lock or journal cannot be had.
    """
    return _apply(host, steps, knobs, promises)[0]


def _apply(
    host: Host, steps: Sequence[Step], knobs: Mapping[str, Knob], promises: Sequence[Step] = ()
) -> Tuple[List[Finding], List[Step]]:
    """The findings, and the steps that this run has made itself."""
    if not steps:
        return [], []
    journal.refuse_foreign(host)
    try:
        with host.lock(journal.LOCK, TURN_SECONDS):
            return _apply_locked(host, steps, knobs, promises)
    except OSError as e:  # the lock or the journal: nothing was begun
        raise Refused("%s: nothing was changed" % errname(e), str(e.filename or journal.STATE), way_out(e))


def _apply_locked(
    host: Host, steps: Sequence[Step], knobs: Mapping[str, Knob], promises: Sequence[Step]
) -> Tuple[List[Finding], List[Step]]:
    settled = recover(host, knobs)
    found: List[Finding] = []
    made: List[Step] = []
    number = first = journal.last(host)  # nobody else writes to it under the lock
    for promise in promises:
        number += 1
        journal.begin(host, promise, number)
    for step in steps:
        try:
            if _now(host, step, knobs) != step.after:  # else another run was faster
                number += 1
                _do(host, step, knobs, number)
                made.append(step)
        except Unclosed as e:
            made.append(step)
            found.append(unclosed(step, e))
        except (OSError, Refused) as e:
            found.append(failed(host, step, e, knobs))
    for offset in range(len(promises) if found else 0):
        _close(host, first + 1 + offset, "dropped")
    return settled + found, made


def _do(host: Host, step: Step, knobs: Mapping[str, Knob], number: int, reverts: int = 0) -> None:
    """One step: intent, effect, read back, done. `number`: of its journal entry. Raises Refused when the value did not stick."""
    if step.lock:
        with host.lock(step.lock):
            return _do(host, replace(step, lock=""), knobs, number, reverts)
    journal.begin(host, step, number, reverts)
    try:
        _effect(host, step)
    except (OSError, Refused):
        _close(host, number, "failed")
        raise
    try:
        now = _now(host, step, knobs)
    except OSError as e:
        raise Unclosed("it could not be read back", e) from None
    if now != step.after:
        _close(host, number, "failed")
        raise Refused("it did not stick: wrote %s, read back %s" % (short(step.after), short(now)), step.target)
    try:
        journal.end(host, number, "done")
    except OSError as e:
        raise Unclosed("the journal could not be closed", e) from None
    return None


def _close(host: Host, number: int, event: str) -> None:
    """Close an entry whose own trouble is the message; where the disk is full too, the next run closes it."""
    with contextlib.suppress(OSError):
        journal.end(host, number, event)


def _effect(host: Host, step: Step) -> None:
    if step.effect == "poke":
        if "*" in step.target:
            sysfs.write_all(host, step.target, step.before or "", step.after or "")
        else:
            host.poke(step.target, step.after or "")
    elif step.effect == "run":
        ran = host.execute(step.argv)
        if ran.rc:
            raise program_failed(step, ran)
    elif step.effect == "code":
        _place_code(host, step)
    elif step.after is None:
        host.remove(step.target, digest(_bytes(step.before or "")))
    else:
        expect = None if step.before is None else digest(_bytes(step.before))
        host.replace(step.target, _bytes(step.after), expect, step.mode)


def _place_code(host: Host, step: Step) -> None:
    """hosttune's own core at `target`; its name carries its digest, so it is never overwritten by another one."""
    if step.after is None:
        host.remove(step.target, (step.before or "").partition(":")[2])
        return
    from . import corezip  # only a new version is placed; a boot never does

    data = corezip.archive()
    if "sha256:" + digest(data) != step.after:
        raise Refused("this is another version of hosttune than the plan was made with", step.target, "run it again")
    host.replace(step.target, data, None)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _now(host: Host, step: Step, knobs: Mapping[str, Knob]) -> Optional[str]:
    """What is there now, in the words of the step. Refused when it cannot be seen from here."""
    if not host.reaches(step.target):
        raise Refused("this lies in a container", step.target, "hosttune revert on the host")
    if step.effect == "replace":
        return read_or_none(host, step.target)
    if step.effect == "poke":
        return sysfs.value(host, step.target)
    if step.effect == "code":
        data = bytes_or_none(host, step.target)
        return None if data is None else "sha256:" + digest(data)
    knob = knobs.get(step.knob)
    reading = _read_one(knob, host, step.subject) if knob else None
    return reading.have if reading and not reading.error else None


def _read_one(knob: Knob, host: Host, subject: str) -> Optional[Reading]:
    return knob.read_one(host, subject) if knob.read_one else knob.read(host).get(subject)


def recover(host: Host, knobs: Mapping[str, Knob]) -> List[Finding]:
    """Close what a killed run left open: done if the change is there, dropped if it never happened, else say so. A promise
    to a running container is kept."""
    from .lxc import promise

    found = []
    for entry in (e for e in journal.entries(host) if e.state == "intent"):
        if promise.is_one(entry.step):
            found += promise.settle(host, entry)
            continue
        try:
            now = _now(host, entry.step, knobs)
        except Refused:
            continue  # its container does not run: still open when it does
        if now == entry.step.after:
            journal.end(host, entry.number, "done")
        elif now == entry.step.before:
            _remove_half(host, entry.step)
            journal.end(host, entry.number, "dropped")
        elif _half_poked(host, entry.step):
            journal.end(host, entry.number, "dropped")
        else:
            journal.end(host, entry.number, "failed")
            found.append(
                finding(
                    "HT906",
                    WARN,
                    entry.step.target,
                    "a run was cut short while it changed this, and it is now neither the old nor the new state",
                    have=short(now),
                    want=short(entry.step.after),
                    hint=Hint(journal.restore_line(entry), "host", "puts the state before the change back", "apply"),
                )
            )
    return found


def _half_poked(host: Host, step: Step) -> bool:
    """A killed run may have written a part of a pattern's files: then they have their old value again."""
    return step.effect == "poke" and sysfs.take_back_half(host, step.target, step.before or "", step.after or "")


def _remove_half(host: Host, step: Step) -> None:
    """A killed run may leave the new file half-written beside the old one."""
    if step.effect == "replace":
        half = step.target + TEMP
        data = bytes_or_none(host, half)
        if data is not None:
            host.remove(half, digest(data))


def revertible(host: Host, to: int = 0) -> List[Entry]:
    """Done entries after number `to`, newest first: what revert would take back."""
    from .lxc import promise

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
            back = _undo(entry.step)
            try:
                now = _now(host, entry.step, knobs)
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
                _do(host, back, knobs, 1 + journal.last(host), reverts=entry.number)
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
            now = _now(host, entry.step, knobs)
            if now not in (entry.step.after, entry.step.before):
                return _by_content(entry, now)
    return _undo(entry.step)


def _by_content(entry: Entry, now: Optional[str]) -> Step:
    """What takes an edit out of a container's config that was written anew since: Proxmox VE does so at each backup. Any
    other file is its last writer's: Refused."""
    from .lxc import undo

    step = entry.step
    if now is None or step.before is None or step.after is None or not undo.applies(step.effect, step.subject, step.target):
        what = "it is no longer what hosttune wrote (now %s, wrote %s)" % (short(now), short(step.after))
        raise Refused(what, step.target, journal.restore_line(entry))
    return replace(_undo(step), before=now, after=undo.taken_out(now, step.before, step.after, step.target))


def _undo(step: Step) -> Step:
    """The step that takes a step back."""
    return replace(step, before=step.after, after=step.before, argv=step.undo, undo=step.argv)


def wants_of(names: Sequence[str], declared: Optional[Mapping[str, str]], knobs: Mapping[str, Knob]) -> Dict[str, str]:
    """Which knobs, with which want: those named, else those declared, else (declared: None, nothing is said) all of them as
    recommended, which is the want "": nobody asked for them, and those whose reading starts a program are left out. To name a
    knob is to ask for it. Refused for an unknown name or an impossible want.
    """
    said = declared or {}
    for name in list(names) + list(said):
        if name not in knobs:
            near = difflib.get_close_matches(name, knobs, 1)
            raise Refused("no such knob: %s" % name, way_out="did you mean %s?" % near[0] if near else "hosttune list")
    everything = [name for name, knob in knobs.items() if not knob.starts]
    wants = {name: said.get(name, "") for name in (everything if declared is None else said)}
    if names:
        wants = {name: said.get(name) or knobs[name].want for name in names}
    for name, want in wants.items():
        problem = knobs[name].check(want) if want else ""
        if problem:
            raise Refused(problem, "knob " + name)
    return wants


@dataclass(frozen=True)
class Tuned:
    """What tune saw and did. `findings` are those after the change; `steps` those that it has made itself (another run may have
    been faster), or in a dry run those to do."""

    findings: List[Finding]
    steps: List[Step]
    changed: bool


def tune(
    host: Host, wants: Mapping[str, str], knobs: Mapping[str, Knob], by_id: Mapping[str, Knob], dry_run: bool
) -> Tuned:
    """Check, plan and (unless dry_run) apply the wanted knobs: what `hosttune apply` and the Ansible module both do."""
    look = Glance(host)
    planned = [plan(knobs[name], look, want) for name, want in wants.items()]
    steps = [step for _, more in planned for step in more]
    if dry_run or not steps:
        return Tuned([f for found, _ in planned for f in found], steps, bool(steps))
    told, made = _apply(host, steps, by_id)
    undone = {(f.id, f.subject) for f in told}
    look = Glance(host)
    after = [
        f for name, want in wants.items() for f in check(knobs[name], look, want) if (f.id, f.subject) not in undone
    ]
    return Tuned(told + after, made, bool(made))
