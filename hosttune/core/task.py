# SPDX-License-Identifier: Apache-2.0
"""What an Ansible task of hosttune returns: the same for each module, made from plain nouns, without Ansible."""

from __future__ import annotations

import dataclasses
import errno
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .door.host import Host
from .model import ERROR, FAIL, LOOK, Action, Finding, Step, as_dict
from .wanted.ignore import apply_ignores
from .wanted.profile import Ignore

CHANGES = ("poke", "replace", "remove", "run")
"""Effects that change the machine. Locks and hosttune's own journal do not."""


def profile_data(profile: Optional[Mapping[str, Any]], **shorthand: Any) -> Dict[str, Any]:
    """The profile's plain data with a task's own options over it: maps key by key, lists added, the rest replaced."""
    data: Dict[str, Any] = dict(profile or {})
    for key, value in shorthand.items():
        old = data.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            data[key] = dict(old, **value)
        elif isinstance(value, list) and isinstance(old, list):
            data[key] = old + value
        elif value is not None:
            data[key] = value
    return data


def trouble(findings: Sequence[Finding]) -> List[Finding]:
    """What makes a machine not be as wanted: failures and what could not be told, unless it is ignored."""
    return [f for f in findings if f.status in (FAIL, ERROR) and not f.ignored]


def mark_ignored(findings: Sequence[Finding], ignores: Sequence[Ignore], now: float) -> List[Finding]:
    """As apply_ignores, for one task of several: an ignore of what this task does not judge is not an unused one."""
    judged = {f.id for f in findings}
    return [plain(f) for f in apply_ignores(findings, [i for i in ignores if i.id in judged], now)]


def plain(value: Any) -> Any:
    r"""The same with \udcff in place of each byte that was no UTF-8: Ansible takes no such text, and would call a task
    failed that has changed something. (Steps keep the bytes: what is written is made of them.)"""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(v) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)})
    return value


def lines(findings: Sequence[Finding], steps: Sequence[Step] = (), actions: Sequence[Action] = (),
          dry: bool = True) -> List[str]:
    """For a person who reads Ansible's output: what is wrong, and what was done or would be. [] when all is well."""
    told = ["%s %s: %s" % (f.id, f.subject, f.summary) for f in trouble(findings)]
    would = "would " if dry else ""
    told += ["%schange %s: %s" % (would, s.target, _change(s)) for s in steps]
    told += ["%srun on %s: %s" % (would, a.subject, " ".join(a.argv)) for a in actions]
    return told


def fixes(findings: Sequence[Finding]) -> List[str]:
    """What is wrong, each with the command that mends it (or shows what to decide by) and where to run that."""
    told = []
    for f in trouble(findings):
        told.append("%s %s %s: %s" % (f.id, f.machine, f.subject, f.summary))
        if f.hint.command:
            told.append("  %s%s: %s" % (f.hint.word, " on " + f.hint.where if f.hint.where else "", f.hint.command))
    return told


def message(e: Exception) -> str:
    """One message for a task that could not even begin: what, where, and the way out."""
    if isinstance(e, OSError):
        hint = "\n  fix: run it as root (become: true)" if e.errno in (errno.EACCES, errno.EPERM) else ""
        return "%s%s%s" % (e.filename + ": " if e.filename else "", e.strerror or e, hint)
    return str(plain(str(e)))


def _change(step: Step) -> str:
    if step.effect != "replace":
        return "%s -> %s" % (step.before, step.after)
    return "written" if step.before is None else "removed" if step.after is None else "edited"


def result(host: Host, findings: Sequence[Finding], steps: Sequence[Step] = (), actions: Sequence[Action] = (), *,
           mode: str, check_mode: bool) -> Dict[str, Any]:
    """The task's return values. `changed` is what Ansible means by it: done, or in check mode would be done.

    Under mode plan nothing is done and nothing has changed; what apply would do stands in steps, actions and lines.
    """
    dry = check_mode or mode == "plan"
    if dry:
        changed = check_mode and mode == "apply" and bool(steps or actions)
    else:
        changed = any(e["effect"] in CHANGES for e in host.effects)
    wrong = trouble(findings)
    out: Dict[str, Any] = {
        "changed": changed, "ok": not wrong, "mode": mode, "findings": as_dict(list(findings)),
        "steps": as_dict(list(steps)), "actions": as_dict(list(actions)), "effects": as_dict(host.effects),
        "diff": [s.as_diff() for s in steps], "lines": lines(findings, steps, actions, dry),
    }
    if wrong and not dry:
        out["failed"] = True
        out["msg"] = _told(wrong)
    told: Dict[str, Any] = plain(out)
    return told


def _told(wrong: Sequence[Finding]) -> str:
    """The first of what is wrong, and the first fix: the two may stand in different findings. A look only where there is none."""
    first = wrong[0]
    hints = sorted((f.hint for f in wrong if f.hint.command), key=lambda hint: hint.word == LOOK)
    fix = "\n  %s: %s" % (hints[0].word, hints[0].command) if hints else ""
    where = " (%s)" % first.evidence[0] if first.evidence else ""
    return "%d not as wanted, first %s %s: %s%s%s" % (len(wrong), first.id, first.subject, first.summary, where, fix)
