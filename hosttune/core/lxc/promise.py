# SPDX-License-Identifier: Apache-2.0
"""Live rules that go with a change of a config, written down before the change: the file forgets the old number with one
rename, and the running container keeps it until somebody takes it back. A run that is killed in between leaves its promise
in the journal, and the next one keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence, Tuple

from .. import journal
from ..catalogue import finding
from ..door.host import Host, Unrecorded
from ..journal import Entry
from ..model import PROVED, SKIP, WARN, Action, Finding, Hint, Refused, Step
from . import facts, see, store
from .closing import Closing
from .document import RAW
from .entries import ALLOW
from .rules import parse_rule
from .store import Config

FINDING, CUT = "HT402", "HT906"
ALLOWS, DENIES = "live-rule", "live-deny"
CLOCKS_DIFFER = 1.0
"""Seconds: a process's start is told in ticks after a boot time without fraction. To take back once more harms nothing."""


def actions(config: Config, closings: Sequence[Closing]) -> Tuple[Action, ...]:
    """Take from the running container what a change takes from its file; what stays is allowed before."""
    return tuple(_action(step, _why(step)) for step in steps(config, closings))


def steps(config: Config, closings: Sequence[Closing]) -> Tuple[Step, ...]:
    """The same for the journal. before: the rule that leaves the file, and why; after: what the container is told."""
    out: List[Step] = []
    for one in closings:
        for rule in one.instead:
            out.append(_step(config, one, "allow", rule))
        out.append(_step(config, one, "deny", one.rule))
    return tuple(dict.fromkeys(out))


def _step(config: Config, one: Closing, verb: str, rule: str) -> Step:
    words, back = ("lxc-cgroup", *config.tool_options), "deny" if verb == "allow" else "allow"
    target, before = "the running " + config.subject, "%s (%s)" % (one.rule, one.why)
    return Step(FINDING, config.subject, "run", target, before, "devices.%s %s" % (verb, rule), (*words, "devices." + verb, rule),
                (*words, "devices." + back, rule))


def _action(step: Step, why: str) -> Action:
    if not _denies(step):
        return Action(ALLOWS, step.subject, step.argv, why, costs="nothing is lost, nothing is restarted")
    return Action(DENIES, step.subject, step.argv, why, costs="what is open stays open; it cannot be opened anew")


def _why(step: Step) -> str:
    rule, _, why = (step.before or "").partition(" (")
    return "the running container still has it: " + why[:-1] if _denies(step) else "stays open where `%s` is taken back" % rule


def _denies(step: Step) -> bool:
    return step.argv[-2] == "devices.deny"


def is_one(step: Step) -> bool:
    """Whether a step of the journal is a promise, which reverts to nothing: the container's next start is made from its file."""
    return step.effect == "run" and step.knob == FINDING


@dataclass(frozen=True)
class Left:
    """A promise that no run has ended. why: it need not be kept any more; "" if it has to be."""

    entry: Entry
    why: str


def left(host: Host, config: Config, pid: int) -> Tuple[Left, ...]:
    """The open promises about a container, in order; none where the journal cannot be read."""
    try:
        mine = [e for e in journal.entries(host) if e.state == "intent" and is_one(e.step) and e.step.subject == config.subject]
    except (OSError, Refused, Unrecorded):
        return ()
    return tuple(Left(entry, _void(host, config, pid, entry)) for entry in mine)


def _void(host: Host, config: Config, pid: int, entry: Entry) -> str:
    if not pid:
        return "it does not run, and its next start is made from the file"
    if facts.start_time(host, pid) > entry.at + CLOCKS_DIFFER:
        return "it was started anew since, from the file"
    rule = parse_rule((entry.step.before or "").partition(" (")[0])
    mine = [parse_rule(line.value) for line in config.document.judged if line.kind == RAW and line.key == ALLOW]
    return "the file was not changed" if any(rule.same(one) for one in mine) else ""


def unkept(promises: Sequence[Left]) -> Tuple[Action, ...]:
    """What is still to be done."""
    return tuple(_action(one.entry.step, "a run was cut short before it did this; " + _why(one.entry.step))
                 for one in promises if not one.why)


def judge(config: Config, promises: Sequence[Left]) -> List[Finding]:
    """What a killed run has left open, and what it left that is over by now."""
    rules = sorted({one.entry.step.argv[-1] for one in promises if not one.why and _denies(one.entry.step)})
    over = sorted({one.why for one in promises if one.why})
    out = [finding(CUT, SKIP, config.subject, "a run was cut short before it reached the running container; nothing is left to "
                   "do: " + why) for why in over]
    if rules:
        names = ", ".join("`%s`" % rule for rule in rules)
        place = "%s: entry %d" % (journal.JOURNAL, promises[0].entry.number)
        summary = "a run was cut short after it took %s out of the file, and the running container has that still" % names
        hint = Hint("hosttune lxc sync " + config.id, "host", "nothing is restarted; what is open stays open", "apply")
        out.append(finding(CUT, WARN, config.subject, summary, have=", ".join(rules), want="no such rule", proof=PROVED,
                           evidence=(place,), hint=hint))
    return out


def settle(host: Host, entry: Entry) -> List[Finding]:
    """Keep, or drop, what a killed run promised, whoever runs next; the journal's lock is held. A finding where it cannot be."""
    subject, step = entry.step.subject, entry.step
    try:
        config = store.find(host, subject.partition(":")[2])
        why = _void(host, config, see.running_pid(host, config), entry)
    except Refused as e:
        why = e.what
    except OSError:
        return []  # it cannot be looked at now: still open when it can
    ran = None if why else host.execute(list(step.argv))
    if ran is None or ran.rc == 0:
        journal.end(host, entry.number, "dropped" if why else "done")
        return []
    told = (ran.err or ran.out).strip().splitlines() or ["exit code %d" % ran.rc]
    return [finding(CUT, WARN, subject, "a run was cut short before `%s`, which cannot be done now: %s" % (step.after, told[-1]),
                    hint=Hint("hosttune lxc sync " + config.id, "host", "nothing is restarted", "apply"))]


def is_open(host: Host, config: Config) -> bool:
    """Whether the journal holds anything open about a container: a promise, or the change of its file itself."""
    try:
        return any(e.state == "intent" and e.step.subject == config.subject for e in journal.entries(host))
    except (OSError, Refused, Unrecorded):
        return False


def end(host: Host, config: Config, done: Sequence[Action]) -> None:
    """Close the promises that these actions kept. The journal's lock is held."""
    kept = {action.argv for action in done}
    for entry in journal.entries(host):
        if entry.state == "intent" and is_one(entry.step) and entry.step.subject == config.subject and entry.step.argv in kept:
            journal.end(host, entry.number, "done")
