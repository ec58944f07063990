# SPDX-License-Identifier: Apache-2.0
"""Stale device rules: numbers that were NVIDIA's once, and are another driver's, or nobody's, now.

Why it matters: a privileged container keeps CAP_MKNOD and may make any node, so `c 509:* rwm` hands it whatever owns 509
today: a BMC, a RAID controller, the host's watchdog.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import FrozenSet, List, Tuple

from ..machine.devices import DeviceTable, has_static_major, is_dynamic, is_gpu_driver, is_nvidia_path
from .document import Line
from .entries import ALLOW, Entries
from .needs import uvm_is_loaded
from .rules import Rule

OWNED, NOBODY, UNKNOWN, FOREIGN = "owned", "nobody", "unknown", "foreign"
_GIVEN_ON_PURPOSE = ("apex", "kfd", "accel", "habanalabs", "qaic", "xclmgmt", "dvb", "cec", "ttyUSB", "ttyACM", "usb", "tun")
"""Drivers whose devices people give to containers: a rule for such a number is somebody's intent, whatever it was once."""


@dataclass(frozen=True)
class Stale:
    """A stale rule. verdict: owned (by another driver: `owner`), nobody (and every other device of the config is
    accounted for, so it was NVIDIA's), unknown (`suspects` might be what it is for: kept unless it is to be pruned),
    foreign (its owner's devices are ones that people give to containers: never touched unless it is named)."""

    line: Line
    rule: Rule
    major: int
    verdict: str
    owner: str = ""
    suspects: Tuple[str, ...] = ()


def stale_rules(have: Entries, devices: DeviceTable) -> Tuple[Stale, ...]:
    """Allow rules for a dynamic major that no NVIDIA or DRM driver owns and that nothing else in the config explains."""
    out: List[Stale] = []
    suspects = _unaccounted(have, devices)
    majors, absent = _passed(have, devices)
    for line, rule in have.rules:
        major = rule.major
        if line.key != ALLOW or rule.bad or rule.type != "c" or major is None or not is_dynamic(major):
            continue
        names = devices.names.get(major, ())
        if any(is_gpu_driver(name) for name in names) or major in majors:
            continue
        if any(_akin(path, name) for name in names for path in absent):
            continue
        if names:
            meant = any(name.startswith(_GIVEN_ON_PURPOSE) for name in names)
            out.append(Stale(line, rule, major, FOREIGN if meant else OWNED, devices.owner(major)))
        elif suspects:
            out.append(Stale(line, rule, major, UNKNOWN, suspects=suspects))
        elif not uvm_is_loaded(devices):
            out.append(Stale(line, rule, major, UNKNOWN, suspects=("nvidia-uvm, which is not loaded",)))
        else:
            out.append(Stale(line, rule, major, NOBODY))
    return tuple(out)


def _passed(have: Entries, devices: DeviceTable) -> Tuple[FrozenSet[int], Tuple[str, ...]]:
    """The majors of the other devices that the config passes, and the paths of those whose node is not there to ask."""
    majors, absent = set(), []
    for path in sorted(path for path in have.paths if not is_nvidia_path(path)):
        node = (devices.nodes or {}).get(path)
        if node is not None and node.type == "char":
            majors.add(node.major)
        else:
            majors.update(inner.major for _, inner in devices.below(path) if inner.type == "char")
            absent.append(path)
    return frozenset(majors), tuple(absent)


def _akin(path: str, driver: str) -> bool:
    """/dev/hidraw3 and hidraw, /dev/ipmi0 and ipmidev: a node that is not plugged in now, and its driver."""
    stem = re.sub(r"[\d_]+\Z", "", path.rsplit("/", 1)[-1])
    return len(stem) > 2 and (driver.startswith(stem) or stem.startswith(driver))


def _unaccounted(have: Entries, devices: DeviceTable) -> Tuple[str, ...]:
    """Devices of the config whose number nobody can tell: not there now, and not of the kind whose numbers are fixed."""
    nodes = devices.nodes or {}
    out = []
    for path in sorted(have.paths):
        if is_nvidia_path(path) or has_static_major(path):
            continue
        if path not in nodes or nodes[path].type == "file":
            out.append(path)
    return tuple(out)
