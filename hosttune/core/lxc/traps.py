# SPDX-License-Identifier: Apache-2.0
"""Lines that stand where they do something else than their writer meant: in a snapshot, among pending changes, beside what
Proxmox VE adds by itself, under a key that no kernel has."""

from __future__ import annotations

from typing import List, Tuple

from ..catalogue import finding
from ..machine.devices import DeviceTable
from ..model import FAIL, FITS, WARN, Finding, Hint
from .document import LXC, PENDING, RAW, Document, effective_keys
from .entries import Entries, entries

_CONTROLLERS = ("cgroup", "cpu", "cpuset", "devices", "dmem", "freezer", "hugetlb", "io", "memory", "misc", "pids", "rdma")


def traps(document: Document, have: Entries, devices: DeviceTable, subject: str) -> Tuple[Finding, ...]:
    """Findings about one config. have: what its main section gives."""
    return tuple(_no_controller(document, subject)) if document.dialect == LXC else tuple(
        _no_controller(document, subject) + _pending(document, subject) + _in_the_last_snapshot(document, have, devices, subject)
        + _fuse(document, have, subject))


def _by_hand(what: str) -> Hint:
    return Hint(what, "host", "nothing until the next start", "reconfigure")


def _no_controller(document: Document, subject: str) -> List[Finding]:
    """`lxc.cgroup2.device.allow`: LXC writes such a value to a file of the container's cgroup, and dies where there is none."""
    out = []
    for line in document.main:
        parts = line.key.split(".")
        if line.kind == RAW and parts[:2] == ["lxc", "cgroup2"] and parts[2] not in _CONTROLLERS:
            out.append(finding("HT426", FAIL, subject, "line %d keeps the container from starting: cgroup v2 has no file %s"
                               % (line.number, ".".join(parts[2:])), have=line.text, evidence=(document.place(line),),
                               hint=_by_hand("correct the key (lxc.cgroup2.devices.allow?), or remove that line")))
    return out


def _pending(document: Document, subject: str) -> List[Finding]:
    """Raw lines among the pending changes become all the raw lines that the container has, at its next start or stop."""
    pending = [line for line in document.lines if line.section == PENDING and line.kind == RAW]
    ours = [line for line in document.main if line.kind == RAW]
    there = [(line.key, line.value) for line in pending]
    lost = [line for line in ours if (line.key, line.value) not in there]
    if not pending or not lost:
        return []
    return [finding("HT428", FAIL, subject, "line %d stands below [pve:pending]: at the next start the raw lines there "
                    "replace all %d of the container, and %d of them are lost" % (pending[0].number, len(ours), len(lost)),
                    have=pending[0].text, want="no lxc. line below [pve:pending]",
                    evidence=tuple(document.place(line) for line in pending[:3]),
                    hint=_by_hand("move those lines above the first line that begins with ["))]


def _in_the_last_snapshot(document: Document, have: Entries, devices: DeviceTable, subject: str) -> List[Finding]:
    """What a script appends to the file lands in its last section."""
    last = document.lines[-1] if document.lines else None
    if last is None or not last.part or last.section == PENDING or have.nvidia_paths or have.nvidia_rules(devices):
        return []
    lines = [line for line in document.lines if line.part == last.part]
    there = entries(document, lines)
    if not there.nvidia_paths:
        return []
    first = next((line for line in lines if "/nvidia" in line.value), last)
    return [finding("HT425", WARN, subject, "snapshot [%s] has NVIDIA's nodes and the container has none: if they were appended "
                    "to the file, they landed in its last snapshot" % last.section, have=first.text, proof=FITS,
                    evidence=(document.place(first),), decide="pct listsnapshot ID: was it taken with the GPU?",
                    hint=_by_hand("hosttune lxc sync %s --gpus all" % (subject[3:] if subject.startswith("ct:") else "ID")))]


def _fuse(document: Document, have: Entries, subject: str) -> List[Finding]:
    """`features: fuse=1` makes /dev/fuse by a mount entry of Proxmox VE's own."""
    features = effective_keys(document.main).get("features")
    if features is None or "fuse=1" not in features.value.replace(" ", "").split(","):
        return []
    return [finding("HT426", FAIL, subject, "%s and `features: fuse=1` both make /dev/fuse: the container does not start"
                    % line.key, have=line.text, want="one of the two", hint=_by_hand("remove the %s line" % line.key),
                    evidence=(document.place(line), document.place(features)))
            for line, entry in have.devs if entry.path == "/dev/fuse" and not entry.bad]
