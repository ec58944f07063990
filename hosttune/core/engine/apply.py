# SPDX-License-Identifier: Apache-2.0
"""Steps, done under one lock, once what a killed run left open is settled."""

from __future__ import annotations

from typing import List, Mapping, Sequence, Tuple

from .. import journal
from ..catalogue import finding
from ..door.host import TEMP, Host, bytes_or_none, digest, errname
from ..machine import sysfs
from ..model import WARN, Finding, Hint, Knob, Refused, Step
from .failures import Unclosed, failed, short, unclosed, way_out
from .step import close, do, now_of

TURN_SECONDS = 60
"""How long a run waits for another one: nvidia-persistenced alone may take half of that to make eight GPUs ready."""


def apply(host: Host, steps: Sequence[Step], knobs: Mapping[str, Knob], promises: Sequence[Step] = ()) -> List[Finding]:
    """Do the steps. Returns a finding for each one that did not stick or could not be written; the rest is silence.

    promises: what the caller does once the steps are done (lxc/promise.py). They stand in the journal before the first step,
    and are dropped again where one failed.

    Nothing is opened for writing when there are no steps. A failed step does not stop the others. Refused, with nothing
    changed, when hosttune's own lock or journal cannot be had.
    """
    return made_by(host, steps, knobs, promises)[0]


def made_by(
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
            if now_of(host, step, knobs) != step.after:  # else another run was faster
                number += 1
                do(host, step, knobs, number)
                made.append(step)
        except Unclosed as e:
            made.append(step)
            found.append(unclosed(step, e))
        except (OSError, Refused) as e:
            found.append(failed(host, step, e, knobs))
    for offset in range(len(promises) if found else 0):
        close(host, first + 1 + offset, "dropped")
    return settled + found, made


def recover(host: Host, knobs: Mapping[str, Knob]) -> List[Finding]:
    """Close what a killed run left open: done if the change is there, dropped if it never happened, else say so. A promise
    to a running container is kept."""
    from ..lxc import promise

    found = []
    for entry in (e for e in journal.entries(host) if e.state == "intent"):
        if promise.is_one(entry.step):
            found += promise.settle(host, entry)
            continue
        try:
            now = now_of(host, entry.step, knobs)
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
