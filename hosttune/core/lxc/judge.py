# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a container config on this host, as findings. Pure: the same file and host give the same findings."""

from __future__ import annotations

import itertools
from typing import Dict, List, Sequence, Tuple

from ..catalogue import finding
from ..machine.devices import DRM_MAJOR, LARGEST_MAJOR, UVM, DeviceTable, is_nvidia_path
from ..model import ERROR, FAIL, FITS, PROVED, WARN, Finding, Hint
from . import pve
from .document import LXC, PENDING, Document, Line
from .entries import ALLOW, DENY, Entries, entries
from .needs import DEV, Need, Wanted, absent_gpus, is_concerned
from .rules import parse_rule
from .stale import FOREIGN, NOBODY, OWNED, stale_rules
from .traps import traps


def judge(document: Document, have: Entries, needed: Sequence[Need], wanted: Wanted, devices: DeviceTable,
          form: str, subject: str) -> Tuple[Finding, ...]:
    """Findings about one config. `subject` is the container as a person names it (ct:200), `form` the one in which
    something missing would be added."""
    out = _missing(document, have, needed, wanted, devices, form, subject)
    out += _closed(document, have, needed, subject)
    if not have.free and not have.everything:
        out += _closed_dri(document, have, subject)
        out += _stale(document, have, devices, is_concerned(have, wanted, devices), subject)
    out += _everything(document, have, wanted, devices, subject)
    out += _dead(document, have, subject)
    out += _clashes(document, have, subject)
    out += _snapshots(document, devices, subject)
    out += _lost(document, subject)
    return tuple(out) + traps(document, have, devices, subject)


def _id(subject: str) -> str:
    return subject[3:] if subject.startswith("ct:") else "ID"


def _sync(subject: str, more: str = "") -> Hint:
    return Hint("hosttune lxc sync %s%s" % (_id(subject), more), "host",
                "nothing is restarted; a running container gets rules at once, and a new node at its next start", "apply")


def _by_hand(what: str = "correct or remove that line") -> Hint:
    return Hint(what, "host", "nothing until the next start", "reconfigure")


_INCLUDED = _by_hand("correct that line in the included file, which hosttune never edits: other containers may include it")


def _missing(document: Document, have: Entries, needed: Sequence[Need], wanted: Wanted, devices: DeviceTable, form: str,
             subject: str) -> List[Finding]:
    """Nodes that no entry gives."""
    out: List[Finding] = []
    absent = absent_gpus(have, wanted, devices)
    if absent:
        names = "GPU %s %s wanted" % (", ".join(map(str, absent)), "is" if len(absent) == 1 else "are")
        out.append(finding("HT421", FAIL, subject, "%s, and the host has no /dev/nvidia%s" % (
                               names, absent[0] if len(absent) == 1 else "N of them"),
                           have="GPUs of the host: " + (", ".join(map(str, devices.gpus())) or "none"), want=names,
                           hint=Hint("nvidia-smi -L", "host", "declare GPUs that it has (gpus:)", "look")))
    for need in needed:
        if have.dev(need.path) or have.binds(need.path) or have.hook:
            continue
        clash = have.target(need.path)
        if clash:
            out.append(finding("HT426", FAIL, subject, "%s is wanted, and another source is mounted there" % need.path,
                               have=clash[0].value, want=need.path, hint=_by_hand(), evidence=(document.place(clash[0]),)))
        elif form == DEV and devices.nodes is not None and need.path not in devices.nodes:
            out.append(finding("HT403", FAIL, subject, "the host has no %s, and a devN entry for it would keep the container "
                               "from starting; it is not added" % need.path, have="no such file", want="char " + need.numbers,
                               hint=Hint(_modprobe(need), "host", "nothing", "apply")))
        else:
            out.append(finding("HT421", FAIL, subject, "%s is not passed into the container" % need.path, have="no entry",
                               want=need.path, hint=_sync(subject), proof=PROVED))
    return out


def _modprobe(need: Need) -> str:
    return "nvidia-modprobe -u -c=0" if need.driver == UVM else "nvidia-modprobe -c=0"


def _closed(document: Document, have: Entries, needed: Sequence[Need], subject: str) -> List[Finding]:
    """Nodes that no rule opens, one finding for each driver."""
    out: List[Finding] = []
    closed = [need for need in needed if not have.opens(need.path, need.major, need.minor)]
    for driver in sorted({need.driver for need in closed}):
        of = [need for need in closed if need.driver == driver]
        names = ", ".join(need.path for need in of)
        entry = have.binds(of[0].path)
        place = ("%s: %s" % (document.place(entry[0]), entry[0].text),) if entry else ()
        if of[0].major is None:
            out.append(finding("HT421", ERROR, subject, "%s has no number: %s is not in /proc/devices, so nobody can say which "
                               "rule it needs" % (names, driver), have="module not loaded", want="module loaded",
                               evidence=place, hint=Hint(_modprobe(of[0]), "host", "nothing", "apply")))
        elif have.denying(of[0].major, of[0].minor):
            line, rule = have.denying(of[0].major, of[0].minor)[0]
            hint = _by_hand("remove or narrow that line") if rule.major is None or line.origin else _sync(subject)
            out.append(finding("HT421", FAIL, subject, "%s denies %s, which is %s now" % (
                document.words([line]), names, ", ".join(need.numbers for need in of)), have=line.text, want="no such line",
                evidence=(document.place(line),), hint=hint, proof=PROVED))
        else:
            out.append(finding("HT421", FAIL, subject, "no rule opens %s, which is %s now" % (
                names, ", ".join(need.numbers for need in of)), have=_rules(have), want="c %d:* rwm" % of[0].major,
                evidence=place + ("/proc/devices: %d %s" % (of[0].major, driver),), hint=_sync(subject), proof=PROVED))
    return out


def _rules(have: Entries) -> str:
    return ", ".join(line.value for line, rule in have.access.opened) or "no rule"


def _closed_dri(document: Document, have: Entries, subject: str) -> List[Finding]:
    """DRM nodes are not needed for CUDA and may be another vendor's, so a missing rule for them is said, not written."""
    for line, mount in have.mounts:
        ruled = any(rule.type == "c" and rule.major in (DRM_MAJOR, None) or rule.path.startswith("/dev/dri")
                    for _, rule in have.access.opened)
        if mount.is_bind and (mount.source + "/").startswith("/dev/dri/") and not ruled:
            return [finding("HT421", WARN, subject, "%s is bound, and no rule opens its nodes (226, drm)" % mount.source,
                            have=_rules(have), want="c %d:* rwm" % DRM_MAJOR, evidence=(document.place(line),),
                            hint=_by_hand("add `%s: c 226:* rwm` to the main section" % ALLOW))]
    return []


def _stale(document: Document, have: Entries, devices: DeviceTable, concerned: bool, subject: str) -> List[Finding]:
    out: List[Finding] = []
    for rule in stale_rules(have, devices):
        place = (document.place(rule.line), "/proc/devices: %d %s" % (rule.major, rule.owner or "is not there"))
        status, fits = WARN, False
        if rule.verdict == OWNED:
            status = FAIL if concerned else WARN
            summary = "rule `%s` opens %s, which owns %d now" % (rule.line.value, rule.owner, rule.major)
        elif rule.verdict == FOREIGN:
            fits = True
            summary = "rule `%s` opens %s, which owns %d, and no entry passes such a device; it may be meant, and is kept" % (
                rule.line.value, rule.owner, rule.major)
        elif rule.verdict == NOBODY:
            summary = "rule `%s` is for a number that nobody owns; the next driver may get it" % rule.line.value
        else:
            fits = True
            summary = "rule `%s` is for a number whose owner is unknown (it may be for %s); it is kept" % (
                rule.line.value, ", ".join(rule.suspects))
        # In a container without anything of NVIDIA's the rule may be meant; only its owner can say so.
        ours = concerned and not fits
        hint = _INCLUDED if rule.line.origin else _sync(subject, "" if ours else " --drop %d" % rule.major)
        out.append(finding("HT420", status, subject, summary, have=rule.line.value, want="no such rule", evidence=place,
                           hint=hint, proof=PROVED if ours else FITS,
                           decide="" if ours else "grep -w %d /proc/devices" % rule.major))
    return out


def _everything(document: Document, have: Entries, wanted: Wanted, devices: DeviceTable, subject: str) -> List[Finding]:
    if have.free:
        return []
    if have.everything:
        line, rule = have.everything
        place = (document.place(line),)
        if rule.fatal:
            return [finding("HT423", FAIL, subject, "`%s` keeps the container from starting: the kernel refuses the device "
                            "program made from it" % line.value, severity="correctness", have=line.value, want="a",
                            hint=_by_hand("remove that line"), evidence=place)]
        what = "`%s` opens every device of the host; further rules mean nothing" % line.value
        if not line.value or line.key == DENY:
            what = "%s leaves an empty list, so no device program is attached, and every device of the host is open" % (
                document.words([line]))
        return [finding("HT423", WARN, subject, what, have=line.text,
                        want="one rule for each device that is needed", evidence=place,
                        hint=_by_hand("remove that line, then: hosttune lxc sync %s" % _id(subject)))]
    if wanted.gpus and len(wanted.gpus) < len(devices.gpus()):
        for line, rule in have.nvidia_rules(devices):
            if rule.minor is None and rule.major == devices.major("nvidia"):
                return [finding("HT423", WARN, subject, "`%s` opens all %d GPUs, and %s wanted" % (
                    line.value, len(devices.gpus()), "GPU %d is" % wanted.gpus[0] if len(wanted.gpus) == 1 else
                    "%d are" % len(wanted.gpus)), have=line.value, want="exact minors, or devN entries",
                    hint=_INCLUDED if line.origin else _sync(subject), evidence=(document.place(line),))]
    return []


def _dead(document: Document, have: Entries, subject: str) -> List[Finding]:
    out: List[Finding] = []

    def dead(lines: Sequence[Line], why: str, want: str = "") -> None:
        out.append(finding("HT424", WARN, subject, "%s without effect: %s" % (document.words(lines), why),
                           have=lines[0].value, want=want, hint=_by_hand(),
                           evidence=tuple("%s: %s" % (document.place(line), line.text) for line in lines[:3])))

    if have.dead:
        dead([line for line, _ in have.dead], "%s is for cgroup v1, and containers are on v2" % have.dead[0][0].key, ALLOW)
    if have.free:
        allowed = [line for line, rule in have.rules if line.key == ALLOW]
        if allowed:
            dead(allowed, "an unprivileged container may open every device that the node's mode lets it")
    for line, rule in () if have.free else have.rules:
        if rule.bad:
            dead([line], "LXC skips this rule (%s), so the device stays denied" % rule.bad)
        elif rule.major is not None and rule.major > LARGEST_MAJOR:
            dead([line], "no device has the number %d; the largest is %d" % (rule.major, LARGEST_MAJOR))
        elif line.key == DENY and rule.path:
            dead([line], "LXC takes no path in a deny rule, only numbers")
        elif line.key == DENY and not _denies(have, line):
            dead([line], "a deny rule only takes back an allow rule above it of exactly the same text")
    for line, mount in have.mounts:
        if mount.ignored:
            dead([line], mount.bad)
    return out


def _denies(have: Entries, deny: Line) -> bool:
    if have.free or have.everything:
        return True
    above = itertools.takewhile(lambda pair: pair[0] is not deny, have.rules)
    before = [rule for line, rule in above if line.key == ALLOW]
    denied = parse_rule(deny.value)
    return denied.type == "a" or any(rule.same(denied) for rule in before)


def _clashes(document: Document, have: Entries, subject: str) -> List[Finding]:
    out: List[Finding] = []
    for index, (line, entry) in enumerate(have.devs):
        other: List[Line] = [at for at, earlier in have.devs[:index] if earlier.path == entry.path]
        other += [at for at, mount in have.mounts if not mount.bad and (mount.target == entry.path or mount.is_bind
                  and entry.path.startswith(mount.target.rstrip("/") + "/"))]
        if entry.bad:  # the file may be read, saved and backed up with it; the start parses it again, and dies
            out.append(finding("HT426", FAIL, subject, "%s keeps the container from starting: Proxmox VE cannot read it: %s"
                               % (line.key, entry.bad), have=line.text, want="%s: /dev/..." % line.key,
                               hint=_sync(subject) if is_nvidia_path(entry.path) else _by_hand(),
                               evidence=(document.place(line),)))
        elif other:
            out.append(finding("HT426", FAIL, subject, "%s and %s both make %s: the container does not start"
                               % (line.key, document.words(other[:1]), entry.path), have=other[0].text, want="one of the two",
                               hint=_sync(subject) if is_nvidia_path(entry.path) and not other[0].origin else
                               _by_hand("remove one of the two lines"),
                               evidence=(document.place(line), document.place(other[0]))))
    for line, mount in have.mounts:
        if mount.fatal:
            out.append(finding("HT426", FAIL, subject, "%s keeps the container from starting: %s" % (
                               document.words([line]), mount.bad),
                               have=line.value, hint=_by_hand(), evidence=(document.place(line),)))
    return out


def _snapshots(document: Document, devices: DeviceTable, subject: str) -> List[Finding]:
    out: List[Finding] = []
    latest = {line.section: line.part for line in document.lines}
    for name in sorted(set(latest) - {"", PENDING}):
        section = entries(document, [line for line in document.lines if line.part == latest[name]])
        for rule in () if section.free else stale_rules(section, devices):
            out.append(finding("HT425", WARN, subject, "snapshot [%s] holds `%s`, and %d is %s now: a rollback brings it back"
                               % (name, rule.line.value, rule.major, rule.owner or "nobody's"), have=rule.line.value,
                               hint=Hint("hosttune lxc sync " + _id(subject), "host, after a rollback",
                                         "nothing is restarted", "apply"),
                               evidence=(document.place(rule.line),)))
    return out


def _lost(document: Document, subject: str) -> List[Finding]:
    if document.dialect == LXC:
        return [finding("HT422", FAIL, subject, "line %d: %s" % (line.number, line.reason), severity="correctness",
                        have=line.text, evidence=(document.place(line),),
                        hint=_by_hand())
                for line in document.lines if line.reason]
    reasons: Dict[str, List[Line]] = {}
    for line, why in pve.lost(document):
        reasons.setdefault(why, []).append(line)
    return [finding("HT422", WARN, subject, "Proxmox VE will drop line%s %s on its next write (a backup is enough): %s"
                    % ("s" * (len(lines) > 1), ", ".join(str(line.number) for line in lines), why), have=lines[0].text,
                    evidence=tuple(document.place(line) for line in lines[:3]),
                    hint=_by_hand("correct the line, or make it a note (# in column 0)"))
            for why, lines in reasons.items()]
