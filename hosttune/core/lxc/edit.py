# SPDX-License-Identifier: Apache-2.0
"""The smallest edit of a container config that gives the container its GPU devices, as a pure function.

Only lines of the main section are added or removed, and each is recognised by what it says, never by a marker or its
place (Proxmox VE moves lines and turns comments into notes). A second edit changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Sequence, Tuple

from ..devices import DeviceTable, is_nvidia_path
from ..model import Finding, Refused
from . import document as doc
from . import pve
from .document import DELETE, KEY, LXC, PENDING, RAW, Document
from .entries import ALLOW, DEV_KEY, MOUNT, Entries, entries, is_dev_line
from .judge import judge
from .keys import truth
from .needs import DEV, KEEP, NUMBER, PATH, Need, Wanted, form_of, is_concerned, needs
from .stale import UNKNOWN, stale_rules

LARGEST_DEV = 255


@dataclass(frozen=True)
class Edit:
    """data: the file's new bytes. changes: one line of text for each line removed (-) or added (+). findings: what was
    wrong with the file as it was. live: numeric rules that a running container needs for its nodes to open."""

    data: bytes
    changes: Tuple[str, ...]
    findings: Tuple[Finding, ...]
    needs: Tuple[Need, ...] = ()
    live: Tuple[str, ...] = ()


@dataclass
class _Plan:
    """Line numbers to remove, with the reason; new lines by key, in order, with the reason."""

    remove: Dict[int, str] = field(default_factory=dict)
    add: List[Tuple[str, str, str]] = field(default_factory=list)


def edit(document: Document, wanted: Wanted, devices: DeviceTable, subject: str = "container") -> Edit:
    """The edit of `document` that gives what is wanted on the host that `devices` describes.

    Raises Refused when there is something to change and the file must not be changed now.
    """
    have = entries(document, document.main)
    form = form_of(have, wanted, devices, document.dialect)
    needed = needs(have, wanted, devices)
    plan = _Plan()
    if wanted.form != KEEP:
        _remove_other_forms(plan, have, needed, devices, form)
    _remove_stale(plan, have, wanted, devices)
    _remove_duplicates(plan, document)
    left = entries(document, [line for line in document.main if line.number not in plan.remove])
    _add_missing(plan, document, left, needed, wanted, devices, form)
    findings = judge(document, have, needed, wanted, devices, form, subject)
    live = () if have.free else _number_rules(needed, form != NUMBER or _is_exact(have, wanted, devices))
    if not plan.remove and not plan.add:
        return Edit(doc.render(document), (), findings, needed, live)
    refuse(document)
    new = _rewrite(document, plan)
    _prove(document, new, plan)
    return Edit(doc.render(new), _describe(document, plan), findings, needed, live)


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
                      "wait for that task to end; after a crash: pct unlock ID")
    if "template" in keys and truth(keys["template"].value) == "1":
        raise Refused("this is a template", document.place(keys["template"]), "edit the containers cloned from it")
    for line in document.lines:
        if line.section != PENDING:
            continue
        deletes = line.kind == DELETE and any(DEV_KEY.match(name) for name in line.value.replace(",", " ").split())
        if line.kind == RAW or deletes or is_dev_line(line):
            raise Refused("a pending change would undo the edit at the next start: %r" % line.text, document.place(line),
                          "apply it (restart the container) or take it back (pct set ID --revert %s)" % (line.key or "KEY"))


def _remove_other_forms(plan: _Plan, have: Entries, needed: Sequence[Need], devices: DeviceTable, form: str) -> None:
    why = "now in the form `%s`" % form
    # What can only be said for a whole folder (its nodes are not known) stays in the form that says it.
    whole = [need for need in needed if need.minor is None]
    folders, majors = [need.path for need in whole], [need.major for need in whole]
    if form != DEV:
        plan.remove.update((line.number, why) for line, entry in have.devs if is_nvidia_path(entry.path))
    else:
        plan.remove.update((line.number, why) for line, mount in have.mounts
                           if is_nvidia_path(mount.source) and mount.is_bind and mount.source not in folders)
    if form != PATH:
        plan.remove.update((line.number, why) for line, rule in have.rules if line.key == ALLOW and is_nvidia_path(rule.path))
    if form != NUMBER:
        plan.remove.update((line.number, why) for line, rule in have.nvidia_rules(devices) if rule.major not in majors)


def _remove_stale(plan: _Plan, have: Entries, wanted: Wanted, devices: DeviceTable) -> None:
    if is_concerned(have, wanted, devices) and not have.free and not have.everything:
        for stale in stale_rules(have, devices):
            if stale.verdict != UNKNOWN:
                plan.remove[stale.line.number] = "%d is %s now" % (stale.major, stale.owner or "nobody's")
    for line, rule in have.rules:
        if line.key == ALLOW and rule.type == "c" and rule.major in wanted.drop:
            plan.remove[line.number] = "%d was named to be dropped" % rule.major


def _remove_duplicates(plan: _Plan, document: Document) -> None:
    """A key given twice: when the line that counts goes, the one above it must not come back to life."""
    gone = {line.key for line in document.main if line.number in plan.remove and line.kind == KEY}
    plan.remove.update((line.number, "a dead duplicate of %s" % line.key) for line in document.main
                       if line.kind == KEY and line.key in gone and line.number not in plan.remove)


def _add_missing(plan: _Plan, document: Document, left: Entries, needed: Sequence[Need], wanted: Wanted,
                 devices: DeviceTable, form: str) -> None:
    closed: List[Need] = []
    for need in needed:
        opened = left.opens(need.path, need.major, need.minor)
        given = left.dev(need.path) or left.binds(need.path) or left.hook
        if not given and form == DEV and need.minor is not None and not left.target(need.path):
            if devices.nodes is not None and need.path not in devices.nodes:
                continue  # judge says so: an entry for a node that is not there keeps the container from starting
            value = need.path + ",mode=0666"
            plan.add.append(("dev%d" % _free_dev(document, plan), value, need.path + " was missing"))
            continue
        if not given and not left.target(need.path):
            kind = "dir" if need.minor is None and need.path.endswith("-caps") else "file"
            value = "%s %s none bind,optional,create=%s" % (need.path, need.path[1:], kind)
            plan.add.append((MOUNT, value, need.path + " was missing"))
        if not opened:
            closed.append(need)
    if form == PATH:
        plan.add += [(ALLOW, "%s rwm" % need.path, "no rule opened %s" % need.path) for need in closed
                     if need.minor is not None]
        closed = [need for need in closed if need.minor is None]
    exact = _is_exact(left, wanted, devices)
    for value in _number_rules(closed, exact):
        major = int(value.split()[1].split(":")[0])
        plan.add.append((ALLOW, value, "no rule opened %s, which is %d" % (devices.owner(major) or "NVIDIA's", major)))


def _is_exact(have: Entries, wanted: Wanted, devices: DeviceTable) -> bool:
    """Whether numeric rules name minors: they do if those that are there do, or if single GPUs are wanted."""
    there = [rule for _, rule in have.nvidia_rules(devices)] or [rule for _, rule in have.nvidia_rules(devices, dead=True)]
    return all(rule.minor is not None for rule in there) if there else bool(wanted.gpus)


def _number_rules(needed: Sequence[Need], exact: bool) -> Tuple[str, ...]:
    out: List[str] = []
    for need in needed:
        if need.major is not None:
            minor = str(need.minor) if exact and need.minor is not None else "*"
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


def _prove(old: Document, new: Document, plan: _Plan) -> None:
    """Both files, without the lines that were removed and added, must say the same, section by section. Anything else
    is a mistake of ours, and then no file is written."""
    if [line.raw for line in old.lines if line.part] != [line.raw for line in new.lines if line.part]:
        raise AssertionError("an edit of main reached another section of %s" % old.path)
    if [line.text for line in old.main if line.reason] != [line.text for line in new.main if line.reason]:
        raise AssertionError("an edit touched a line that nobody understands in %s" % old.path)
    before, after = pve.kept(old)[""], pve.kept(new)[""]
    removed = [old.lines[number - 1] for number in plan.remove]
    for line in removed:
        if line.kind == RAW:
            before.raw.remove((line.key, line.value))
        elif line.kind == KEY and DEV_KEY.match(line.key):
            before.keys.pop(line.key, None)
        else:
            raise AssertionError("an edit wanted to remove %r from %s" % (line.text, old.path))
    for key, value, _ in plan.add:
        if DEV_KEY.match(key):
            if after.keys.pop(key, None) != value:
                raise AssertionError("%s: %s did not arrive in %s" % (key, value, old.path))
        else:
            after.raw.remove((key, value))
    if before != after:
        raise AssertionError("an edit changed more than it said in %s" % old.path)
