# SPDX-License-Identifier: Apache-2.0
"""Which of the rules that leave a file must not live on in the container that runs: the rest only change their form, and
the container lives by them until its next start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Tuple

from ..machine.devices import DeviceTable
from .document import Line
from .entries import ALLOW, Entries, is_nvidia_major
from .narrow import undeclared
from .needs import Wanted


@dataclass(frozen=True)
class Closing:
    """A numeric rule to take back, why, and the rules that must be in force before: those of what stays."""

    rule: str
    why: str
    instead: Tuple[str, ...] = ()


def closes(removed: Mapping[int, str], have: Entries, wanted: Wanted, devices: DeviceTable,
           cards: Tuple[str, ...]) -> Tuple[Closing, ...]:
    """Of the removed lines ({number: why}) the rules that open what the container shall not have: another driver's number,
    or an undeclared GPU's (by number, or what a start made of a path). cards: rules for the GPUs that it keeps."""
    if have.free or have.everything:
        return ()
    too_much = undeclared(have, wanted, devices)
    out = []
    for line, rule in have.rules:
        if line.number not in removed or line.key != ALLOW or rule.type != "c" or rule.bad or rule.major is None:
            continue
        ours = is_nvidia_major(rule.major, devices)
        if ours and line.number not in too_much:
            continue
        text = "c %d:%s %s" % (rule.major, "*" if rule.minor is None else rule.minor, rule.access)
        out.append(Closing(text, removed[line.number], cards if ours and rule.minor is None else ()))
    for line, path, access in _by_path(have):
        node = (devices.nodes or {}).get(path)
        if line.number in removed and line.number in too_much and node is not None and node.type == "char":
            out.append(Closing("c %d:%d %s" % (node.major, node.minor, access), removed[line.number]))
    return tuple(out)


def _by_path(have: Entries) -> List[Tuple[Line, str, str]]:
    """Entries that a start turns into a rule for one number: (line, path, the access of that rule)."""
    out = [(line, entry.path, "r" if entry.option("deny-write") in ("1", "on", "yes", "true") else "rw")
           for line, entry in have.devs]
    return out + [(line, rule.path, rule.access) for line, rule in have.rules if line.key == ALLOW and rule.path]
