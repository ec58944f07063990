# SPDX-License-Identifier: Apache-2.0
"""What hosttune changed here: intent before the change, done after it, both fsynced; and a verbatim copy of every file
before its change. The journal is what revert, and the run after a killed one, work from."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, List

from .door.host import Host, Unrecorded, digest, read_or_none
from .model import Refused, Step

STATE = "/var/lib/hosttune"
JOURNAL = STATE + "/journal.jsonl"
BACKUP = STATE + "/backup"
LOCK = STATE + "/lock"
"""Not in /run/lock, which any user may write to: with fs.protected_regular a user's file of that name locks root out."""
TORN = '{"event": "torn"}'
"""The line after one that a power loss cut short."""
ENDS = ("done", "failed", "dropped", "reverted")


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
    """Every change in order. A torn line (power loss) is left out; any other bad line is Refused with its number, and so
    is a journal that somebody else may write to."""
    refuse_foreign(host)
    lines = (read_or_none(host, JOURNAL) or "").split("\n")
    torn = {number for number, line in enumerate(lines) if line == TORN} | {len(lines)}
    found: Dict[int, Entry] = {}
    for number, line in enumerate(lines, 1):
        if line in ("", TORN):
            continue
        place = "%s:%d" % (JOURNAL, number)
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number in torn:
                continue
            raise Refused("this line is not JSON", place, "move the file away to start a new journal") from None
        try:
            _take(found, row)
        except (TypeError, KeyError, ValueError):
            raise Refused(
                "this line is not understood; a newer hosttune may have written it",
                place,
                "use that one, or move the file away to start a new journal",
            ) from None
    return list(found.values())


def _take(found: Dict[int, Entry], row: Dict[str, Any]) -> None:
    """Put one line to what is found so far. Raises TypeError, KeyError or ValueError for what this version never wrote."""
    number, event, at = row["entry"], row["event"], float(row["at"])
    if event not in ("intent", *ENDS) or isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(event)
    if event == "intent":
        found[number] = Entry(number, _step(row["step"]), event, at, row.get("backup", ""), row.get("reverts", 0))
    elif number in found:
        found[number] = replace(found[number], state=event, at=at)


def _step(row: Dict[str, Any]) -> Step:
    step = Step(**dict(row, argv=tuple(row.get("argv", ())), undo=tuple(row.get("undo", ()))))
    if step.effect not in ("replace", "poke", "run", "code"):
        raise ValueError(step.effect)
    return step


def refuse_foreign(host: Host) -> None:
    """Refused when somebody but root, or the caller, may write hosttune's files: a journal holds commands that revert
    runs, and a link in its folder would lead root's writes elsewhere."""
    me = host.who().uid
    for path, kind in ((JOURNAL.rpartition("/")[0], "dir"), (JOURNAL, "file"), (BACKUP, "dir"), (LOCK, "file")):
        try:
            seen = host.lstat(path)
        except (OSError, Unrecorded):
            continue  # not there yet; or no rights even to look, which reading it will tell
        wrong = (
            "it is a %s, not a %s" % (seen.type, kind)
            if seen.type != kind
            else "it belongs to user %d" % seen.uid
            if seen.uid not in (0, me)
            else "others may write to it (mode %s)" % seen.mode
            if int(seen.mode, 8) & 0o022
            else ""
        )
        if wrong:
            way_out = "see who did that, move it away; or, if it is yours: chown root: %s && chmod go-w %s" % (
                path,
                path,
            )
            raise Refused(wrong + ": it cannot be trusted, and nothing was changed", path, way_out)


def last(host: Host) -> int:
    """The number of the newest entry, 0 when there is none."""
    return max((e.number for e in entries(host)), default=0)


def begin(host: Host, step: Step, number: int, reverts: int = 0) -> None:
    """Write the intent of entry `number`, one more than the last, and the backup of a file. OSError when the disk is full."""
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


def end(host: Host, number: int, event: str) -> None:
    """Close an entry: done, failed, dropped or reverted."""
    _write(host, {"event": event, "entry": number, "at": host.clock()})


def _write(host: Host, row: Dict[str, Any]) -> None:
    text = read_or_none(host, JOURNAL) or ""
    start = "\n" + TORN + "\n" if text and not text.endswith("\n") else ""
    host.append(JOURNAL, (start + json.dumps(row, sort_keys=True) + "\n").encode("ascii"))


def restore_line(entry: Entry) -> str:
    """One shell line that puts the old state back without hosttune."""
    step = entry.step
    if step.target.startswith("ct:"):
        _, ct_id, path = step.target.split(":", 2)
        if step.before is None:
            return shlex.join(["lxc-attach", "-n", ct_id, "--", "rm", path])
        return "lxc-attach -n %s -- tee %s < %s" % (ct_id, shlex.quote(path), shlex.quote(entry.backup))
    if step.effect == "replace" and step.before is None:
        return shlex.join(["rm", step.target])
    if step.effect == "replace":
        # cp onto an existing file keeps its mode and owner, which is also all that /etc/pve allows
        return shlex.join(["cp", "--no-preserve=mode", entry.backup, step.target])
    if step.effect == "poke" and "*" in step.target:
        return "echo %s | tee %s" % (
            shlex.quote(step.before or ""),
            step.target,
        )  # a pattern of /sys: no blank, no quote
    if step.effect == "poke":
        return "echo %s > %s" % (shlex.quote(step.before or ""), shlex.quote(step.target))
    return shlex.join(step.undo)
