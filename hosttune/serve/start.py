# SPDX-License-Identifier: Apache-2.0
"""Start, stop and restart of a declared engine. What is well already is left alone; what stands in the way is named before
anything is written.

Order of a start: everything is looked at; then the files (backed up, journalled, read back); then systemctl.
"""

from __future__ import annotations

from dataclasses import replace

from ..core import engine as changes
from ..core.door.host import Host
from ..core.knobs import BY_ID
from ..core.model import FAIL, Action, Finding, Report, Step
from ..core.wanted.profile import Profile
from . import alive, launch, written
from .see import Seen, see, steps


def start(host: Host, profile: Profile, name: str, dry_run: bool = False) -> Report:
    """Make the engine run as declared. One that runs is never restarted: a pending restart is a finding (HT610)."""
    seen = see(host, profile, name, health=True)
    planned = steps(seen)
    found = launch.launchable(seen) + written.lint(seen) + (written.verified(seen) if planned else [])
    begin = [] if seen.runs else [_action(seen, "start", "it does not run")]
    if dry_run:
        found += [written.files(seen)] + (alive.running(seen) if seen.runs else [])
        return _report("unit start", host, found, planned, begin, dry=True)
    if _blocked(found):
        return _report("unit start", host, found, [], [], dry=True)
    if not planned and not begin:
        return _report("unit start", host, [*found, written.files(seen), *alive.running(seen)], [], [])
    unwritten = changes.apply(host, planned, BY_ID)
    if unwritten:
        return _report("unit start", host, unwritten, [], [])
    done, failed = _act(seen, begin)
    after = see(host, profile, name)
    if failed:
        return _report("unit start", host, [alive.died(after.engine, after.told)], planned, [])
    verified = written.verified(after, analyzed=bool(planned))
    return _report("unit start", host, [written.files(after), *verified, *alive.pending(after)], planned, done)


def stop(host: Host, profile: Profile, name: str, dry_run: bool = False) -> Report:
    """End the engine, all of its processes. The action says what that ended."""
    seen = see(host, profile, name)
    ending = [_action(seen, "stop", "asked for", alive.ends(seen))] if seen.runs else []
    if dry_run or not ending:
        return _report("unit stop", host, [], [], ending, dry=True)
    done, failed = _act(seen, ending)
    after = see(host, profile, name)
    found: list[Finding] = []
    if failed or after.runs:
        found = [replace(alive.answering(after), status=FAIL, summary="it still runs: %s" % (failed or after.state))]
    return _report("unit stop", host, found, [], done)


def restart(host: Host, profile: Profile, name: str, dry_run: bool = False) -> Report:
    """Stop what runs and start it as declared. Refuses, with all still running, when the new start could not work."""
    seen = see(host, profile, name, health=True)
    if not seen.runs:
        return replace(start(host, profile, name, dry_run), command="unit restart")
    found = launch.launchable(seen) + written.lint(seen) + written.verified(seen)
    acts = [_action(seen, "stop", "asked for", alive.ends(seen)), _action(seen, "start", "as declared now")]
    if dry_run:
        return _report("unit restart", host, [*found, written.files(seen)], steps(seen), acts, dry=True)
    if _blocked(found):
        return _report("unit restart", host, found, [], [], dry=True)
    stopped = stop(host, profile, name)
    if any(f.status == FAIL for f in stopped.findings):
        return replace(stopped, command="unit restart")
    begun = start(host, profile, name)
    return replace(begun, command="unit restart", actions=stopped.actions + begun.actions, changed=True)


def remove(host: Host, profile: Profile, name: str) -> list[Step]:
    """The steps that take the unit of an engine away again (its launcher may serve others)."""
    seen = see(host, profile, name)
    have = seen.told["files"].get(seen.rendered.path)
    return [] if have is None else [Step("HT601", name, "replace", seen.place.target(seen.rendered.path), have, None)]


def _blocked(found: list[Finding]) -> bool:
    return any(f.status == FAIL for f in found)


def _action(seen: Seen, verb: str, why: str, destroys: tuple[str, ...] = ()) -> Action:
    return Action(
        verb, "%s:%s" % (seen.place.machine, seen.engine.unit), ("systemctl", verb, seen.engine.unit), why, destroys
    )


def _act(seen: Seen, actions: list[Action]) -> tuple[list[Action], str]:
    """Do them in order; what was done, and what the first that failed said."""
    done: list[Action] = []
    for action in actions:
        if action.name == "start" and seen.told["show"].get("Result") == "start-limit-hit":
            seen.place.ask("act", verb="reset-failed", unit=seen.engine.unit)
        told = seen.place.ask("act", verb=action.name, unit=seen.engine.unit)
        if told["rc"]:
            return done, str(told["said"] or "exit code %d" % told["rc"])
        done.append(action)
    return done, ""


def _report(
    command: str, host: Host, found: list[Finding], planned: list[Step], acts: list[Action], dry: bool = False
) -> Report:
    changed = not dry and bool(planned or acts)
    return Report(
        command,
        host.uname()[0],
        {},
        tuple(found),
        tuple(planned),
        tuple(acts),
        tuple(host.effects),
        changed,
        "plan" if dry else "apply",
    )
