# SPDX-License-Identifier: Apache-2.0
"""The containers of this host, as the next start will read their configs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Tuple

from ..door.host import Host
from ..lxc import store
from ..lxc.document import LXC, effective_keys
from ..lxc.entries import ALLOW, Entries, entries
from ..lxc.needs import DEV, PATH
from ..lxc.store import Config
from ..machine.devices import is_dynamic


@dataclass(frozen=True)
class Guest:
    """One container. must_exist: (place, path) of entries without which it does not start. numbers: (place, major) of rules for
    majors that the kernel hands out anew at each boot. onboot: whether the host starts it by itself. form: what takes the place
    of numbers (plain LXC knows no devN)."""

    id: str
    path: str
    uses_nvidia: bool
    onboot: bool
    must_exist: Tuple[Tuple[str, str], ...] = ()
    numbers: Tuple[Tuple[str, int], ...] = ()
    form: str = DEV


def read(host: Host) -> List[Guest]:
    """Every container whose config is on this host. Raises OSError."""
    return [_guest(store.find(host, ct_id)) for ct_id in store.known_ids(host)]


def _guest(config: Config) -> Guest:
    lines = config.document.judged
    found = entries(config.document, lines)
    place = config.document.place
    must = [(place(line), entry.path) for line, entry in found.devs if not entry.bad]
    must += [
        (place(line), mount.source)
        for line, mount in found.mounts
        if mount.is_bind and mount.source.startswith("/") and "optional" not in mount.options
    ]
    numbers = [
        (place(line), rule.major)
        for line, rule in found.rules
        if line.key == ALLOW and not rule.bad and rule.type == "c" and rule.major is not None and is_dynamic(rule.major)
    ]
    keys = effective_keys(lines)
    onboot = "onboot" in keys and keys["onboot"].value.strip() == "1"
    form = PATH if config.document.dialect == LXC else DEV
    return Guest(config.id, config.path, _uses_nvidia(found), onboot, tuple(must), tuple(numbers), form)


def _uses_nvidia(found: Entries) -> bool:
    rules = [rule for line, rule in found.rules if line.key == ALLOW]
    return (
        bool(found.nvidia_paths)
        or found.hook
        or any(rule.major == 195 or re.match("/dev/nvidia", rule.path or "") for rule in rules)
    )
