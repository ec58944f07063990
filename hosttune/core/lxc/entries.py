# SPDX-License-Identifier: Apache-2.0
"""What the lines of one section give a container: device rules, devN entries, mount entries, and what they add up to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import FrozenSet, Optional, Sequence, Tuple

from ..machine.devices import DeviceTable, is_nvidia_path
from .access import ALLOW as ALLOW
from .access import DENY as DENY
from .access import Access, access
from .document import KEY, LXC, RAW, Document, Line, effective_keys
from .keys import truth
from .mounts import mounts
from .rules import DevEntry, Mount, Rule, parse_dev, parse_rule

MOUNT = "lxc.mount.entry"
V1 = ("lxc.cgroup.devices.allow", "lxc.cgroup.devices.deny")
DEV_KEY = re.compile(r"dev\d+\Z")
_GPU = re.compile(r"/dev/nvidia\d+\Z")


@dataclass(frozen=True)
class Entries:
    """The device lines of one section, each with its line. `rules` are v2 rules in file order (the line's key says
    allow or deny); `dead` are v1 rules, which mean nothing on cgroup v2. `access` is what the rules add up to.
    `hook`: NVIDIA's mount hook makes the nodes."""

    devs: Tuple[Tuple[Line, DevEntry], ...]
    mounts: Tuple[Tuple[Line, Mount], ...]
    rules: Tuple[Tuple[Line, Rule], ...]
    dead: Tuple[Tuple[Line, Rule], ...]
    access: Access
    hook: bool

    @property
    def free(self) -> bool:
        """Whether every device is open without a rule: only a node's mode decides."""
        return self.access.free

    @property
    def everything(self) -> Optional[Tuple[Line, Rule]]:
        """The rule that opens every device of the host, if there is one."""
        return self.access.everything

    def opens(self, path: str, major: Optional[int], minor: Optional[int]) -> bool:
        """Whether a process inside gets past the device cgroup to this node."""
        if self.free or self.everything:
            return not self.denying(major, minor)
        if self.dev(path) and not self.access.cut:
            return True
        return any(rule.path == path and {"r", "w"} <= set(rule.access) if rule.path else
                   major is not None and rule.opens(major, minor) for _, rule in self.access.opened)

    def denying(self, major: Optional[int], minor: Optional[int]) -> Tuple[Tuple[Line, Rule], ...]:
        """Where everything is open but for deny rules: those about this node. Only an allow rule of the same text, or the
        end of the line, takes one back."""
        return () if major is None else tuple(
            (line, rule) for line, rule in self.access.denied if rule.touches(major, minor))

    def dev(self, path: str) -> Optional[Tuple[Line, DevEntry]]:
        """The devN entry for a path."""
        return next(((line, entry) for line, entry in self.devs if entry.path == path and not entry.bad), None)

    def binds(self, path: str) -> Optional[Tuple[Line, Mount]]:
        """The mount entry that shows a node of the host, itself or with its folder, at its own path inside. Of several at
        one place the last covers the others. One GPU may stand in the place of another."""
        for line, mount in reversed(self.mounts):
            if mount.is_bind and _shows(mount, path):
                return line, mount
            if _fills(mount, path):
                return None
        return None

    def target(self, path: str) -> Optional[Tuple[Line, Mount]]:
        """The mount entry that makes something at this path inside, or fills the folder it is in."""
        return next(((line, mount) for line, mount in self.mounts if _fills(mount, path)), None)

    @property
    def paths(self) -> FrozenSet[str]:
        """Every path below /dev that an entry or a path rule names."""
        named = [entry.path for _, entry in self.devs] + [rule.path for _, rule in self.rules if rule.path]
        named += [mount.source for _, mount in self.mounts if mount.is_bind or mount.misplaced]
        return frozenset(path for path in named if path == "/dev" or path.startswith("/dev/"))

    @property
    def nvidia_paths(self) -> FrozenSet[str]:
        """Those of them that are NVIDIA's."""
        return frozenset(path for path in self.paths if is_nvidia_path(path))

    def nvidia_rules(self, devices: DeviceTable, dead: bool = False) -> Tuple[Tuple[Line, Rule], ...]:
        """Numeric allow rules for majors that NVIDIA's drivers own now (or 195, which is always theirs)."""
        rules = self.dead if dead else self.rules
        return tuple((line, rule) for line, rule in rules if line.key.endswith(".allow") and rule.type == "c"
                     and rule.major is not None and is_nvidia_major(rule.major, devices))


def _fills(mount: Mount, path: str) -> bool:
    inside = mount.target == path or path.startswith(mount.target.rstrip("/") + "/") and mount.is_bind
    return inside and not mount.bad


def _shows(mount: Mount, path: str) -> bool:
    source = mount.source.rstrip("/")
    if path != source and not path.startswith(source + "/"):
        return False
    inside = mount.target.rstrip("/") + path[len(source):]
    return inside == path or bool(_GPU.match(path) and _GPU.match(inside))


def is_nvidia_major(major: int, devices: DeviceTable) -> bool:
    """Whether a character major is NVIDIA's: 195 by registration, others by /proc/devices."""
    return major == 195 or any(name.startswith("nvidia") for name in devices.names.get(major, ()))


def entries(document: Document, lines: Sequence[Line]) -> Entries:
    """Read the device lines of one section."""
    raw = [line for line in lines if line.kind == RAW]
    keys = effective_keys(lines)
    devs = sorted((line for key, line in keys.items() if DEV_KEY.match(key)), key=lambda line: line.number)
    rules = tuple((line, parse_rule(line.value)) for line in raw if line.key in (ALLOW, DENY))
    # Anything but a word for no is yes to Proxmox VE's Perl; a value of its own kind is warned about and kept.
    unprivileged = "unprivileged" in keys and truth(keys["unprivileged"].value) != "0" or any(
        line.key == "lxc.idmap" for line in raw)
    return Entries(
        devs=tuple((line, parse_dev(line.value)) for line in devs),
        mounts=mounts([line for line in raw if line.key == MOUNT]),
        rules=rules,
        dead=tuple((line, parse_rule(line.value)) for line in raw if line.key in V1),
        access=access(rules, unprivileged, document.dialect == LXC),
        hook=any(line.key == "lxc.hook.mount" and line.value.endswith("/nvidia") for line in raw))


def is_dev_line(line: Line) -> bool:
    """Whether this is a devN line."""
    return line.kind == KEY and bool(DEV_KEY.match(line.key))
