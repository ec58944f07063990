# SPDX-License-Identifier: Apache-2.0
"""What engines need of the host's memory beside their models, and which of them have taken it already: what a running engine has
is no part of MemAvailable any more, and must not be kept for it a second time."""

from __future__ import annotations

import contextlib
import re
from typing import Set, Tuple

from ..door.host import Host, Unrecorded, list_or_empty
from ..wanted.profile import Profile
from . import space

_UNIT = re.compile(r"hosttune-(?P<engine>[A-Za-z0-9][A-Za-z0-9_.-]*)\.service\Z")
_PAYLOAD = "lxc.payload."


def memory(host: Host, profile: Profile) -> Tuple[int, int]:
    """Bytes that the declared models' engines still need, and bytes that those which run have taken. A model's `engine-memory` is
    taken when one of its engines runs."""
    needs = {name: space.bytes_of(str(row.get("engine-memory", "0"))) for name, row in profile.models.items()}
    if not any(needs.values()):
        return 0, 0
    there = running(host)
    serving = {str(row.get("model", "")).split("/")[0] for name, row in profile.engines.items()
               if (str(row.get("in", "host")), name) in there}  # fmt: skip
    taken = sum(need for name, need in needs.items() if name in serving)
    return sum(needs.values()) - taken, taken


def running(host: Host) -> Set[Tuple[str, str]]:
    """(place, engine) of each unit of an engine that has a process, here and in containers: the kernel tells each process's
    cgroup, and nobody has to be asked in there. A recording that does not say knows of none."""
    texts: Set[str] = set()
    with contextlib.suppress(Unrecorded):
        for pid in (entry for entry in list_or_empty(host, "/proc") if entry.isdigit()):
            with contextlib.suppress(OSError):  # it has ended
                texts.add(host.read("/proc/%s/cgroup" % pid))
    return {found for text in texts for line in text.splitlines() for found in _unit_of(line.split(":", 2)[-1])}


def _unit_of(path: str) -> Set[Tuple[str, str]]:
    """Of one cgroup: /system.slice/hosttune-E.service; below /lxc/200/ns (Proxmox VE) or /lxc.payload.200 in a container."""
    place, found = "host", ""
    parts = path.split("/")
    for before, part in zip(parts, parts[1:]):
        unit = _UNIT.match(part)
        if part.startswith(_PAYLOAD) or before == "lxc":
            place = "ct:" + (part[len(_PAYLOAD):] if part.startswith(_PAYLOAD) else part)
        elif unit:
            found = unit["engine"]
    return {(place, found)} if found else set()
