# SPDX-License-Identifier: Apache-2.0
"""One step: what is there now, the effect, and its way through the journal."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Mapping, Optional

from .. import journal
from ..door.host import Host, bytes_or_none, digest, read_or_none
from ..machine import sysfs
from ..model import Knob, Reading, Refused, Step
from .failures import Unclosed, program_failed, short


def do(host: Host, step: Step, knobs: Mapping[str, Knob], number: int, reverts: int = 0) -> None:
    """One step: intent, effect, read back, done. `number`: of its journal entry. Raises Refused when the value did not stick."""
    if step.lock:
        with host.lock(step.lock):
            return do(host, replace(step, lock=""), knobs, number, reverts)
    journal.begin(host, step, number, reverts)
    try:
        _effect(host, step)
    except (OSError, Refused):
        close(host, number, "failed")
        raise
    try:
        now = now_of(host, step, knobs)
    except OSError as e:
        raise Unclosed("it could not be read back", e) from None
    if now != step.after:
        close(host, number, "failed")
        raise Refused("it did not stick: wrote %s, read back %s" % (short(step.after), short(now)), step.target)
    try:
        journal.end(host, number, "done")
    except OSError as e:
        raise Unclosed("the journal could not be closed", e) from None
    return None


def close(host: Host, number: int, event: str) -> None:
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
    from .. import corezip  # only a new version is placed; a boot never does

    data = corezip.archive()
    if "sha256:" + digest(data) != step.after:
        raise Refused("this is another version of hosttune than the plan was made with", step.target, "run it again")
    host.replace(step.target, data, None)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def now_of(host: Host, step: Step, knobs: Mapping[str, Knob]) -> Optional[str]:
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
