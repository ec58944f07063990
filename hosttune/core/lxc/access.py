# SPDX-License-Identifier: Apache-2.0
"""What a list of device rules adds up to, as liblxc makes its device program of it (tests/kernel holds it against the real one).

Two passes. A config key with an empty value takes back what stands above it under that key, Debian's and Proxmox VE's own
lines in the included files too. What is left is then gone through in order: `a` empties the list and says what holds for all
else (allow: all but what is denied; deny: none but what is allowed); any other rule joins the list, or takes the place of one
with the same fields. And a list that ends up empty is no program at all: every device is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Tuple

from .document import Line
from .rules import Rule

ALLOW, DENY = "lxc.cgroup2.devices.allow", "lxc.cgroup2.devices.deny"
Item = Tuple[Optional[Line], bool, Rule]
"""A rule: its line (None: of an included file, or of a devN entry), whether it allows, and what it says."""

_ALL, _OTHERS, _DEVS = Rule(type="a", access="rwm", everything=True), Rule("c", access="m"), Rule("c", path="devN")
PRIVILEGED: Tuple[Item, ...] = ((None, False, _ALL), (None, True, _OTHERS))
"""LXC's common.conf: nothing but any mknod, and devices like /dev/null."""
PROXMOX_UNPRIVILEGED: Tuple[Item, ...] = ((None, True, _ALL),)
"""Proxmox VE's userns.conf. Debian's leaves an empty list."""


@dataclass(frozen=True)
class Access:
    """free: every device is open, as it is without any of these rules (a container in a user namespace). everything: the rule
    that opens every device, or the one by which nothing is left in the list. opened: allow rules that count, where all else is
    refused. denied: deny rules that count, where all else is open. cut: the rules that Proxmox VE makes of devN entries, which
    stand above the file's own, are taken back by one of these."""

    free: bool = False
    everything: Optional[Tuple[Line, Rule]] = None
    opened: Tuple[Tuple[Line, Rule], ...] = ()
    denied: Tuple[Tuple[Line, Rule], ...] = ()
    cut: bool = False


def access(rules: Sequence[Tuple[Line, Rule]], free: bool, rules_end_freedom: bool) -> Access:
    """Fold rules in file order. free: in a user namespace. rules_end_freedom: the included file leaves an empty list there
    (Debian's), so that the first rule ends it; Proxmox VE's says `a`, and it stays free."""
    included = () if free and rules_end_freedom else PROXMOX_UNPRIVILEGED if free else PRIVILEGED
    items = list(included) + [(None, True, _DEVS)]
    last: Optional[Tuple[Line, Rule]] = None
    for line, rule in rules:
        allows = line.key == ALLOW
        if rule.wipes:
            items = [item for item in items if item[1] != allows]
            last = (line, rule)
        elif not rule.bad and not (rule.path and not allows):  # LXC takes no path in a deny rule
            items.append((line, allows, rule))
    return _summed(items, free, last)


def _summed(items: Sequence[Item], free: bool, last: Optional[Tuple[Line, Rule]]) -> Access:
    kept: Dict[object, Item] = {}
    all_allowed, by = False, last
    for line, allows, rule in items:
        if rule.fatal:
            if allows and line is not None:
                return Access(everything=(line, rule))
        elif rule.type == "a":
            kept, all_allowed = {}, allows
            by = (line, rule) if line is not None else by
        else:
            kept[rule.fields] = (line, allows, rule)  # one with the same fields keeps its place
    rules = [(line, allows, rule) for line, allows, rule in kept.values() if line is not None]
    empty = all(rule is _DEVS for _, _, rule in kept.values())  # there may be no devN entry at all: its place does not count
    if not (all_allowed or empty):
        opened = tuple((line, rule) for line, allows, rule in rules if allows)
        whole = next((pair for pair in opened if pair[1].everything), None)
        return Access(False, whole, opened, cut=_DEVS.fields not in kept)
    denied = tuple((line, rule) for line, allows, rule in rules if not allows)
    return Access(free, None if free else by, (), denied)
