# SPDX-License-Identifier: Apache-2.0
"""The smallest edit of a container config that gives the container its GPU devices, as a pure function.

Only lines of the main section are added or removed, and each is recognised by what it says, never by a marker or its
place (Proxmox VE moves lines and turns comments into notes). A second edit changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Dict, List, Optional, Sequence, Tuple

from ..machine.devices import CAPS, DeviceTable
from ..model import Finding, Refused
from . import document as doc
from .access import ALLOW, Access, access
from .closing import Closing, closes
from .cpus import pin
from .document import DELETE, KEY, LXC, PENDING, RAW, Document, Line
from .entries import DEV_KEY, MOUNT, Entries, entries, is_dev_line
from .judge import judge
from .keys import truth
from .leaving import leaving
from .needs import DEV, NUMBER, PATH, Need, Wanted, form_of, needs
from .prove import prove

LARGEST_DEV = 255


@dataclass(frozen=True)
class Edit:
    """data: the file's new bytes. changes: one line of text for each line removed (-) or added (+). findings: what was
    wrong with the file as it was. live: numeric rules that a running container needs for its nodes to open. closings: rules
    that shall not outlive the file's in a running container. free: it needs no rule. refusal: why there are no changes
    although some are needed, where that was not to be raised."""

    data: bytes
    changes: Tuple[str, ...]
    findings: Tuple[Finding, ...]
    needs: Tuple[Need, ...] = ()
    live: Tuple[str, ...] = ()
    closings: Tuple[Closing, ...] = ()
    free: bool = False
    refusal: Optional[Refused] = None


@dataclass
class _Plan:
    """Line numbers to remove, with the reason; new lines by key, in order, with the reason."""

    remove: Dict[int, str] = field(default_factory=dict)
    add: List[Tuple[str, str, str]] = field(default_factory=list)


def edit(document: Document, wanted: Wanted, devices: DeviceTable, subject: str = "container", raising: bool = True) -> Edit:
    """The edit of `document` that gives what is wanted on the host that `devices` describes.

    Raises Refused when there is something to change and the file must not be changed now; not `raising`: returns it.
    """
    have = _read(document, document.judged, wanted)
    form = form_of(have, wanted, devices, document.dialect)
    needed = needs(have, wanted, devices)
    plan = _Plan(leaving(document, have, needed, wanted, devices, form))
    left = _read(document, [line for line in document.judged if line.number not in plan.remove], wanted)
    if _is_open(left) and not _is_open(have):  # nothing would be left in the list, and an empty one opens every device
        left = replace(left, access=Access(cut=True))
    _add_missing(plan, document, left, needed, wanted, devices, form)
    pin(plan.remove, plan.add, document, wanted.cpus)
    findings = judge(document, have, needed, wanted, devices, form, subject)
    exact = form != NUMBER or _is_exact(have, wanted, devices)
    live = () if have.free else _number_rules(needed, exact, bool(wanted.gpus))
    seen = Edit(doc.render(document), (), findings, needed, live, free=have.free)
    if not plan.remove and not plan.add:
        return seen
    try:
        refuse(document)
    except Refused as e:
        if raising:
            raise
        return replace(seen, refusal=e)
    new = _rewrite(document, plan)
    if _is_open(_read(new, new.judged, wanted)) and not _is_open(have):
        first = document.lines[min(plan.remove) - 1]
        raise Refused("without line %d no rule is left, and an empty list opens every device of the host: %r"
                      % (first.number, first.text), document.place(first), "give the container the rules that it needs first")
    prove(document, new, plan.remove, [(key, value) for key, value, _ in plan.add])
    cards = _number_rules([need for need in needed if need.driver == "nvidia"], True, True)
    return replace(seen, data=doc.render(new), changes=_describe(document, plan),
                   closings=closes(plan.remove, have, wanted, devices, cards))


def _read(document: Document, lines: Sequence[Line], wanted: Wanted) -> Entries:
    """The device lines; where EPERM was seen inside, the freedom of an unprivileged container is not taken for granted."""
    have = entries(document, lines)
    return replace(have, access=access(have.rules, False, False)) if wanted.refused and have.free else have


def _is_open(have: Entries) -> bool:
    """Whether every device of the host is open to the container."""
    return have.free or have.everything is not None


def refuse(document: Document) -> None:
    """Raise Refused, with file:line and the way out, for a file that must not be edited now."""
    if document.dialect == LXC:
        for line in document.main:
            if line.reason:
                raise Refused(line.reason + ": %r" % line.text, document.place(line), "correct or remove that line first")
        return
    keys = doc.effective_keys(document.main)
    if "lock" in keys:
        word = keys["lock"].value
        raise Refused("the container is locked (%s)" % word, document.place(keys["lock"]),
                      "wait for that task to end; after a crash: pct unlock " + _vmid(document))
    if "template" in keys and truth(keys["template"].value) == "1":
        raise Refused("this is a template", document.place(keys["template"]), "edit the containers cloned from it")
    for line in document.lines:
        if line.section != PENDING:
            continue
        deletes = line.kind == DELETE and any(DEV_KEY.match(name) for name in line.value.replace(",", " ").split())
        if line.kind == RAW or deletes or is_dev_line(line):
            raise Refused("a pending change would undo the edit at the next start: %r" % line.text, document.place(line),
                          "apply it (pct reboot %s) or take it back (pct set %s --revert %s)" % (
                              _vmid(document), _vmid(document), (line.value if line.kind == DELETE else line.key) or "KEY"))


def _vmid(document: Document) -> str:
    match = re.search(r"(\d+)\.conf\Z", document.path)
    return match.group(1) if match else "ID"


def _add_missing(plan: _Plan, document: Document, left: Entries, needed: Sequence[Need], wanted: Wanted,
                 devices: DeviceTable, form: str) -> None:
    closed: List[Need] = []
    for need in needed:
        opened = left.opens(need.path, need.major, need.minor)
        given = left.dev(need.path) or left.binds(need.path) or left.hook
        if not given and left.target(need.path):
            continue  # judge says so: something else is mounted there
        if not given and form == DEV and need.minor is not None:
            if devices.nodes is not None and need.path not in devices.nodes:
                continue  # judge says so: an entry for a node that is not there keeps the container from starting
            value = "%s,mode=%s" % (need.path, _mode(need, devices))
            plan.add.append(("dev%d" % _free_dev(document, plan), value, need.path + " was missing"))
            if not left.access.cut:
                continue
        elif not given:
            kind = "dir" if need.minor is None and need.path.endswith("-caps") else "file"
            value = "%s %s none bind,optional,create=%s" % (need.path, need.path[1:], kind)
            plan.add.append((MOUNT, value, need.path + " was missing"))
        if not opened:
            closed.append(need)
    if left.free or left.everything:
        _take_back_denials(plan, left, closed)
        return
    if form == PATH:
        plan.add += [(ALLOW, "%s rwm" % need.path, "no rule opened %s" % need.path) for need in closed
                     if need.minor is not None]
        closed = [need for need in closed if need.minor is None]
    for value in _number_rules(closed, _is_exact(left, wanted, devices), bool(wanted.gpus)):
        major = int(value.split()[1].split(":")[0])
        plan.add.append((ALLOW, value, "no rule opened %s, which is %d" % (devices.owner(major) or "NVIDIA's", major)))


def _take_back_denials(plan: _Plan, left: Entries, closed: Sequence[Need]) -> None:
    """Everything is open but for deny rules, and only the same text takes one back. A rule that denies more than NVIDIA's
    numbers is its owner's to change."""
    for line, rule in left.access.denied:
        if rule.major is not None and any(rule.touches(need.major or -1, need.minor) for need in closed):
            value = "c %d:%s %s" % (rule.major, "*" if rule.minor is None else rule.minor, rule.access)
            plan.add.append((ALLOW, value, "%s denies it" % (line.origin or "line %d" % line.number)))


def _mode(need: Need, devices: DeviceTable) -> str:
    """What every user of CUDA opens is for all, as the driver makes it; a capability keeps the mode that the driver gave
    it, since that mode is what it grants (nvidia-cap1, which configures MIG, is root's)."""
    node = (devices.nodes or {}).get(need.path)
    return "%04o" % node.mode if need.driver == CAPS and node is not None else "0666"


def _is_exact(have: Entries, wanted: Wanted, devices: DeviceTable) -> bool:
    """Whether numeric rules name minors: they do if those that are there do, or if single GPUs are wanted."""
    there = [rule for _, rule in have.nvidia_rules(devices)] or [rule for _, rule in have.nvidia_rules(devices, dead=True)]
    return all(rule.minor is not None for rule in there) if there else bool(wanted.gpus)


def _number_rules(needed: Sequence[Need], exact: bool, exact_cards: bool) -> Tuple[str, ...]:
    """Rules by number. exact: they name minors; exact_cards: those of GPUs do, whatever the others do."""
    out: List[str] = []
    for need in needed:
        if need.major is not None:
            by_minor = exact or need.driver == "drm" or exact_cards and need.driver == "nvidia"
            minor = str(need.minor) if by_minor and need.minor is not None else "*"
            rule = "c %d:%s rwm" % (need.major, minor)
            if rule not in out:
                out.append(rule)
    return tuple(out)


def _free_dev(document: Document, plan: _Plan) -> int:
    """The smallest N above none that any section but a snapshot, or the plan, uses."""
    used = {line.key for line in document.lines if is_dev_line(line) and line.section in ("", PENDING)
            and line.number not in plan.remove}
    used |= {key for key, _, _ in plan.add}
    for number in range(LARGEST_DEV + 1):
        if "dev%d" % number not in used:
            return number
    raise Refused("all of dev0 to dev%d are in use" % LARGEST_DEV, document.path or "config", "use --form path")


def _rewrite(document: Document, plan: _Plan) -> Document:
    insert: Dict[int, List[str]] = {}
    for key, value, _ in plan.add:
        if DEV_KEY.match(key):
            at = doc.after_last(document, KEY, ("dev", ""))
        else:
            at = doc.after_last(document, RAW, ("lxc.cgroup2.devices." if key == ALLOW else key, "lxc."))
        insert.setdefault(at, []).append(doc.format_line(document, key, value))
    return doc.rewrite(document, plan.remove, insert)


def _describe(document: Document, plan: _Plan) -> Tuple[str, ...]:
    out = ["- %s  (line %d: %s)" % (document.lines[number - 1].text, number, plan.remove[number])
           for number in sorted(plan.remove)]
    return tuple(out + ["+ %s  (%s)" % (doc.format_line(document, key, value), why) for key, value, why in plan.add])
