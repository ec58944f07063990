# SPDX-License-Identifier: Apache-2.0
"""What hosttune changed here: intent before the change, done after it, both fsynced; and a verbatim copy of every file
before its change. The journal is what revert, and the run after a killed one, work from."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from typing import Any, Dict, List

from .host import Host, digest, read_or_none
from .model import Refused, Step

STATE = "/var/lib/hosttune"
JOURNAL = STATE + "/journal.jsonl"
BACKUP = STATE + "/backup"
LOCK = STATE + "/lock"
"""Not in /run/lock, which any user may write to: with fs.protected_regular a user's file of that name locks root out."""


@dataclass(frozen=True)
class Entry:
    """One change. state: intent (cut short), done, failed (did not stick), dropped (never happened), reverted."""

    number: int
    step: Step
    state: str
    at: float
    backup: str = ""
    reverts: int = 0


def entries(host: Host) -> List[Entry]:
    """Every change in order. A torn last line (power loss) is left out; any other bad line is Refused with its number."""
    text = read_or_none(host, JOURNAL) or ""
    lines = text.splitlines()
    found: Dict[int, Dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            if number == len(lines):
                continue
            raise Refused(
                "this line is not JSON", "%s:%d" % (JOURNAL, number), "move the file away to start a new journal"
            ) from None
        if row["event"] == "intent":
            found[row["entry"]] = dict(row, state="intent")
        elif row["entry"] in found:
            found[row["entry"]].update(state=row["event"], at=row["at"])
    return [
        Entry(row["entry"], _step(row["step"]), row["state"], row["at"], row.get("backup", ""), row.get("reverts", 0))
        for row in found.values()
    ]


def _step(row: Dict[str, Any]) -> Step:
    return Step(**dict(row, argv=tuple(row.get("argv", ())), undo=tuple(row.get("undo", ()))))


def begin(host: Host, step: Step, reverts: int = 0) -> int:
    """Write the intent (and the backup of a file) and return the entry's number. Raises OSError when the disk is full."""
    number = 1 + max((e.number for e in entries(host)), default=0)
    row: Dict[str, Any] = {"event": "intent", "entry": number, "at": host.clock(), "step": asdict(step)}
    if reverts:
        row["reverts"] = reverts
    if step.effect == "replace" and step.before is not None:
        data = step.before.encode("utf-8", "surrogateescape")
        row["backup"] = "%s/%04d%s" % (BACKUP, number, step.target.replace("/", "_"))
        held = read_or_none(host, row["backup"])
        expect = None if held is None else digest(held.encode("utf-8", "surrogateescape"))
        host.replace(row["backup"], data, expect, mode=0o600)
    _write(host, row)
    return number


def end(host: Host, number: int, event: str) -> None:
    """Close an entry: done, failed, dropped or reverted."""
    _write(host, {"event": event, "entry": number, "at": host.clock()})


def _write(host: Host, row: Dict[str, Any]) -> None:
    text = read_or_none(host, JOURNAL) or ""
    start = "\n" if text and not text.endswith("\n") else ""  # a torn line stays alone
    host.append(JOURNAL, (start + json.dumps(row, sort_keys=True) + "\n").encode("ascii"))


def restore_line(entry: Entry) -> str:
    """One shell line that puts the old state back without hosttune."""
    step = entry.step
    if step.effect == "replace" and step.before is None:
        return shlex.join(["rm", step.target])
    if step.effect == "replace":
        # cp onto an existing file keeps its mode and owner, which is also all that /etc/pve allows
        return shlex.join(["cp", "--no-preserve=mode", entry.backup, step.target])
    if step.effect == "poke":
        return "echo %s > %s" % (shlex.quote(step.before or ""), shlex.quote(step.target))
    return shlex.join(step.undo)
