# SPDX-License-Identifier: Apache-2.0
"""Which rule is it? What the device cgroup refuses, read off the nodes and, from the host, off the container's config.

No file shows the rules of cgroup v2: they are a program. What can be said without reading it: EPERM from faccessat()
means that a device program refuses (a file mode or a nodev mount gives EACCES, and the driver is not asked). One node
that opens beside one that does not, with the same owner and mode, means that the rules go by number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from ..lxc.facts import ContainerFacts, RuleLine
from ..machine.devices import is_dynamic, is_gpu_driver
from .survey import Machine, Node

START_TIME_ERROR = 1.0
"""Seconds: `btime` in /proc/stat has no fraction."""
MISSING, PENDING, ELSEWHERE, UNKNOWN = "missing", "pending", "elsewhere", "unknown"


@dataclass(frozen=True)
class Reason:
    """Why a number is refused. kind: missing (the config has no rule for it), pending (the config has one, and the
    container that runs was started before), elsewhere (config and start agree that it is allowed: another program
    refuses), unknown (no config was read). place: the responsible line. text: one line of evidence."""

    kind: str
    place: str = ""
    text: str = ""
    certain: bool = False


def wanted_rule(number: str) -> str:
    """The rule that opens a driver's whole major, as people write it in the numeric form."""
    return "c %s:* rwm" % number.partition(":")[0]


def wanted_rules(refused: Sequence[Node], machine: Machine) -> Tuple[str, ...]:
    """Rules that open the refused nodes of one driver: its whole major, or each node where the rules go by minor.

    They go by minor where a node of the same driver is allowed: opening the whole major would then hand over GPUs that
    this container may not be meant to have.
    """
    major = refused[0].rdev.partition(":")[0]
    allowed = [n for n in machine.nodes.values() if n.rdev.partition(":")[0] == major and n.access == "ok"]
    return tuple("c %s rwm" % n.rdev for n in refused) if allowed else (wanted_rule(refused[0].rdev),)


def why(node: Node, number: str, facts: Optional[ContainerFacts], machine: Machine) -> Reason:
    """Find the line that is responsible for a refused node."""
    if facts is None:
        return Reason(UNKNOWN)
    place = facts.allowing(node.path, number)
    if place:
        return _allowed_by_config(node, number, facts, place)
    return Reason(MISSING, *_responsible(facts, number, machine), certain=True)


def _allowed_by_config(node: Node, number: str, facts: ContainerFacts, place: str) -> Reason:
    if facts.started_without(node.path, number):
        return Reason(PENDING, place, "%s allows it; the running container was started without that rule" % place, True)
    younger = facts.changed - facts.started
    if facts.started and younger > START_TIME_ERROR:
        text = "%s allows it; the file is %d s younger than the running container" % (place, younger)
        return Reason(PENDING, place, text, True)
    return Reason(ELSEWHERE, place, "%s allows it, and the container was started after that was written" % place)


def _responsible(facts: ContainerFacts, number: str, machine: Machine) -> Tuple[str, str]:
    """(place, evidence) of what stands where the rule should be."""
    major, minor = (int(part) for part in number.split(":"))
    bad = next(
        (line for line in facts.rules if line.allow and line.rule.bad and re.search(r"\b%d\b" % major, line.text)), None
    )
    if bad:
        return bad.place, "%s: LXC skips `%s`: %s" % (bad.place, bad.text, bad.rule.bad)
    old_key = next((line for line in facts.v1 if line.rule.opens(major, minor)), None)
    if old_key:
        return (
            old_key.place,
            "%s: lxc.cgroup.devices.allow has no effect on cgroup v2 (lxc.cgroup2 has)" % old_key.place,
        )
    aside = next((line for line in facts.elsewhere if line.rule.opens(major, minor)), None)
    if aside:
        return aside.place, "%s: the rule stands in a section that a running container does not read" % aside.place
    stale = stale_rules(facts, machine)
    if stale:
        told = [
            "%s allows %s (%s)"
            % (
                "line " + line.place.rpartition(":")[2]
                if i and line.place.rpartition(":")[0] == stale[0].place.rpartition(":")[0]
                else line.place,
                line.rule.major,
                machine.owner(line.rule.major or 0) or "nobody's now",
            )
            for i, line in enumerate(stale[:3])
        ]
        return stale[0].place, "%s; no line allows %d" % (", ".join(told), major)
    return facts.path, "%s: no line allows %d" % (facts.path, major)


def stale_rules(facts: ContainerFacts, machine: Machine) -> List[RuleLine]:
    """Rules for a dynamic major that no GPU driver has now. Those that nobody has come first: once they were ours."""
    found = []
    for line in facts.rules:
        major = line.rule.major
        if line.allow and not line.rule.bad and line.rule.type == "c" and major is not None and is_dynamic(major):
            if not any(is_gpu_driver(name) for name in machine.owners.get(str(major), ())):
                found.append(line)
    return sorted(found, key=lambda line: bool(machine.owner(line.rule.major or 0)))
