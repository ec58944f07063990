# SPDX-License-Identifier: Apache-2.0
"""What each device line of a config means today, for a person: the line, and the device that it opens or brings in."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from ..machine.devices import DeviceTable, Node, driver_of, expected_minor, has_static_major, is_dynamic
from .document import PENDING, RAW, Document, Line
from .entries import ALLOW, DENY, V1, Entries, entries
from .rules import Rule


class Gets(NamedTuple):
    """One line: where it stands, what it says, what it means now."""

    place: str
    says: str
    means: str


def gets(document: Document, devices: DeviceTable) -> Tuple[Gets, ...]:
    """Every device line of main, in the file's order; then device lines of the sections that do not count now."""
    have = entries(document, document.judged)
    order = {line.number: place for place, line in enumerate(document.judged)}
    by_line = {}
    for line, rule in have.rules + have.dead:
        by_line[line.number] = (line, _rule(line, rule, have, devices))
    for line, entry in have.devs:
        by_line[line.number] = (line, "cannot be read: " + entry.bad if entry.bad else "node and rule, made anew at each start: "
                                + _node(entry.path, devices))
    for line, mount in have.mounts:
        if mount.bad:
            by_line[line.number] = (line, "no entry: " + mount.bad)
        elif mount.is_bind and (mount.source + "/").startswith("/dev/"):
            at = "" if mount.target == mount.source else ", at %s" % mount.target
            by_line[line.number] = (line, "node: " + _node(mount.source, devices) + at)
    rows = sorted(by_line.items(), key=lambda row: order[row[0]])
    out = [Gets(document.place(line), line.text, means) for _, (line, means) in rows]
    return tuple(out + _elsewhere(document, devices))


def _elsewhere(document: Document, devices: DeviceTable) -> List[Gets]:
    out = []
    for line in document.lines:
        if not line.part or line.kind != RAW or line.key not in (ALLOW, DENY):
            continue
        section = entries(document, [line])
        means = _rule(line, section.rules[0][1], section, devices)
        when = "pending, counts from the next start on" if line.section == PENDING else "snapshot, counts after a rollback"
        out.append(Gets(document.place(line), "[%s] %s" % (line.section, line.text), "%s: %s" % (when, means)))
    return out


def _rule(line: Line, rule: Rule, have: Entries, devices: DeviceTable) -> str:
    if line.key in V1:
        return "nothing: cgroup v1 only"
    if rule.bad:
        return "nothing, LXC skips it: " + rule.bad
    verb = "opens" if line.key == ALLOW else "takes back"
    if rule.fatal:
        return "the container does not start with it"
    if rule.everything:
        return "%s every device of the host" % verb
    if have.free and line.key == ALLOW:
        return "nothing: an unprivileged container needs no rule"
    if rule.path:
        return "%s %s" % (verb, _node(rule.path, devices))
    owner = devices.owner(rule.major) if rule.type == "c" and rule.major is not None else ""
    which = "every number" if rule.minor is None else "number %d" % rule.minor
    if rule.type != "c" or rule.major is None:
        return "%s %s devices" % (verb, "block" if rule.type == "b" else "character")
    if not owner:
        then = ", and the next driver may get it" if is_dynamic(rule.major) else ""
        return "%s nothing now: nobody owns %d%s" % (verb, rule.major, then)
    exact = [path for path, node in (devices.nodes or {}).items() if node.type == "char"
             and (node.major, node.minor) == (rule.major, rule.minor)]
    return "%s %s" % (verb, "%s (%s)" % (exact[0], owner) if exact else "%s of %s" % (which, owner))


def _node(path: str, devices: DeviceTable) -> str:
    node = (devices.nodes or {}).get(path)
    if devices.nodes is None or node is None and has_static_major(path):
        major, minor = devices.major(driver_of(path)), expected_minor(path)
        return path if major is None or minor is None else "%s (%d:%d)" % (path, major, minor)
    return "%s (%s)" % (path, _kind(node))


def _kind(node: "Node | None") -> str:
    if node is None:
        return "not there now"
    return "%d:%d" % (node.major, node.minor) if node.type in ("char", "block") else "folder" if node.type == "dir" else node.type
