# SPDX-License-Identifier: Apache-2.0
"""What an owner should know of a config beyond its rules: includes, GPUs that are not this container's, starts that a form
makes depend on the driver. Pure."""

from __future__ import annotations

import re
from typing import List, Tuple

from ..catalogue import finding
from ..machine.devices import DeviceTable
from ..model import FAIL, PROVED, SKIP, WARN, Finding, Hint
from . import includes
from .document import RAW, Document, Included
from .edit import Edit
from .entries import Entries, entries
from .narrow import named, numeric, undeclared
from .needs import Wanted


def foresee(document: Document, wanted: Wanted, devices: DeviceTable, planned: Edit, subject: str) -> Tuple[Finding, ...]:
    """Findings about one config and its edit."""
    have = entries(document, document.judged)
    out = _includes(document, subject)
    out += _undeclared(document, have, wanted, devices, subject)
    out += _of_vms(document, have, wanted, devices, subject)
    return tuple(out + _start_needs_nodes(wanted, planned, subject))


def _id(subject: str) -> str:
    return subject[3:] if subject.startswith("ct:") else "ID"


def _includes(document: Document, subject: str) -> List[Finding]:
    """Included files that keep the container from starting, and those that nobody could read."""
    out = []
    for line in document.main:
        if line.kind != RAW or line.key != includes.KEY or includes.is_lxcs_own(line.value):
            continue
        seen = document.included.get(line.value, Included(unread=line.value + ": not here"))
        if seen.broken:
            by_hand = Hint("correct or remove that line", "host", "nothing until the next start", "reconfigure")
            out.append(finding("HT431", FAIL, subject, "%s keeps the container from starting: %s" % (
                                   document.words([line]), seen.broken), severity="correctness", have=line.text, proof=PROVED,
                               evidence=(document.place(line),), hint=by_hand))
        elif seen.unread:
            out.append(finding("HT431", WARN, subject, "%s includes what cannot be read, and may name devices: %s" % (
                                   document.words([line]), seen.unread), have=line.text, evidence=(document.place(line),),
                               hint=Hint("sudo hosttune lxc show " + _id(subject), "host", "", "look")))
    return out


def _undeclared(document: Document, have: Entries, wanted: Wanted, devices: DeviceTable, subject: str) -> List[Finding]:
    by_number = {line.number: line for line, _ in named(have)}
    by_number.update((line.number, line) for line, rule in numeric(have, devices) if rule.minor is not None)
    lines = [by_number[number] for number in sorted(undeclared(have, wanted, devices)) if number in by_number]
    if not lines:
        return []
    declared = ",".join(map(str, wanted.gpus or ()))
    included = all(line.origin for line in lines)
    return [finding("HT432", FAIL, subject, "%s give%s it GPUs that are not declared" % (
                        document.words(lines), "s" * (len(lines) == 1)),
                    have=lines[0].text, want="GPU " + declared, proof=PROVED,
                    evidence=tuple("%s: %s" % (document.place(line), line.text) for line in lines[:3]),
                    hint=Hint("take them out of the included file, which hosttune never edits", "host",
                              "nothing until the next start", "reconfigure") if included else
                    Hint("hosttune lxc sync %s --gpus %s" % (_id(subject), declared), "host",
                         "a running container keeps an entry until its next start", "apply"))]


def _of_vms(document: Document, have: Entries, wanted: Wanted, devices: DeviceTable, subject: str) -> List[Finding]:
    out = []
    for number, place in sorted(wanted.vms.items()):
        lines = [line for line, path in named(have) if path == "/dev/nvidia%d" % number]
        if lines:
            out.append(finding("HT433", WARN, subject, "GPU %d is passed in, and a virtual machine is given it too: when that "
                               "starts, the GPU is gone from here" % number, have=lines[0].text, want="one owner",
                               evidence=(document.place(lines[0]), place),
                               hint=Hint("declare its GPUs without %d (gpus:), then: hosttune lxc sync %s"
                                         % (number, _id(subject)), "host", "", "reconfigure")))
        elif wanted.gpus is None and number in devices.gpus():
            out.append(finding("HT433", SKIP, subject, "GPU %d is left out: a virtual machine is given it" % number,
                               evidence=(place,)))
    return out


def _start_needs_nodes(wanted: Wanted, planned: Edit, subject: str) -> List[Finding]:
    added = [change for change in planned.changes if re.match(r"\+ dev\d+: ", change)]
    if wanted.required or not added:
        return []
    return [finding("HT434", WARN, subject, "in the form `dev` Proxmox VE does not start the container while one of its %d nodes "
                    "is missing, and it is not declared that it needs them (gpu: required)" % len(added),
                    have="dev", want="path, or gpu: required", evidence=(added[0][2:],),
                    hint=Hint("hosttune lxc sync %s --form path" % _id(subject), "host",
                              "the entries are optional then: it starts without its GPUs", "reconfigure"))]
