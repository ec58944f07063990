# SPDX-License-Identifier: Apache-2.0
"""What a host knows of one of its containers: the device rules of its config, each with file and line, and whether the
container that runs was started from that config.

Rules become one device program when the container starts (liblxc, cgroup v2). An edit after the start changes nothing
that runs. Proxmox VE writes /var/lib/lxc/ID/config anew at each start, and `lxc-info -c` shows that file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Tuple

from ..door.host import Host, Unrecorded, read_or_none
from .document import DROPPED, KEY, LXC, PVE, RAW, Document, effective_keys, parse
from .includes import follow
from .keys import truth
from .rules import DevEntry, Mount, Rule, parse_dev, parse_mount, parse_rule

ALLOW, DENY, ALLOW_V1 = "lxc.cgroup2.devices.allow", "lxc.cgroup2.devices.deny", "lxc.cgroup.devices.allow"
CLOCK_TICKS = 100
"""USER_HZ: the unit of times in /proc/PID/stat, 100 on every architecture that has NVIDIA GPUs."""


@dataclass(frozen=True)
class RuleLine:
    """A device rule and where it stands. `allow` is False for a deny line."""

    place: str
    text: str
    allow: bool
    rule: Rule


@dataclass(frozen=True)
class ContainerFacts:
    """One container, from its host. pid: its init, 0 when it does not run, None when
    that could not be told. started, changed: seconds since the epoch.

    elsewhere: rules in a snapshot or pending section, which the running container does not read.
    rules: cgroup v2 rules of the main section in their order. v1: rules that only cgroup v1 would read.
    started_with: allow values that Proxmox VE generated for the last start (or the last `pct set`); None when they could
    not be had. Plain LXC keeps no such copy: there only the times tell.
    """

    id: str
    path: str
    dialect: str
    unprivileged: bool
    rules: Tuple[RuleLine, ...] = ()
    v1: Tuple[RuleLine, ...] = ()
    elsewhere: Tuple[RuleLine, ...] = ()
    devs: Tuple[Tuple[str, DevEntry], ...] = ()
    mounts: Tuple[Tuple[str, Mount], ...] = ()
    pid: Optional[int] = 0
    started: float = 0
    changed: float = 0
    started_with: Optional[Tuple[str, ...]] = None

    def allowing(self, path: str, number: str) -> str:
        """`file:line` of the first entry that opens a node, "" if none does."""
        major, minor = (int(part) for part in number.split(":"))
        denied = {line.text for line in self.rules if not line.allow}
        for line in self.rules:
            if line.allow and line.text not in denied and _opens(line.rule, path, major, minor):
                return line.place
        return next((place for place, dev in self.devs if dev.path == path and not dev.bad), "")

    def passing(self, path: str) -> str:
        """`file:line` of the entry that brings a node of the host in (its own, or its folder), "" if none does."""
        places = [place for place, dev in self.devs if dev.path == path and not dev.bad]
        places += [
            place
            for place, mount in self.mounts
            if mount.is_bind and not mount.ignored and (path + "/").startswith(mount.target.rstrip("/") + "/")
        ]
        return places[0] if places else ""

    def started_without(self, path: str, number: str) -> Optional[bool]:
        """Whether the rules that the container was started with refuse a node; None when they are not known."""
        if self.started_with is None:
            return None
        major, minor = (int(part) for part in number.split(":"))
        return not any(_opens(parse_rule(value), path, major, minor) for value in self.started_with)


def _opens(rule: Rule, path: str, major: int, minor: int) -> bool:
    named = rule.path == path and {"r", "w"} <= set(rule.access)
    return not rule.bad and (rule.everything or rule.opens(major, minor) or named)


def container_facts(host: Host, ct_id: str) -> ContainerFacts:
    """Read a container's config and the state of its init. Raises OSError (ENOENT: there is no such container here)."""
    document, changed = _document(host, ct_id)
    rules: List[RuleLine] = []
    v1: List[RuleLine] = []
    mounts = []
    for line in document.judged:
        # A raw line that Proxmox VE drops has no effect either.
        if line.kind != RAW:
            continue
        if line.key in (ALLOW, DENY):
            rules.append(RuleLine(document.place(line), line.value, line.key == ALLOW, parse_rule(line.value)))
        elif line.key == ALLOW_V1:
            v1.append(RuleLine(document.place(line), line.value, True, parse_rule(line.value)))
        elif line.key == "lxc.mount.entry":
            mounts.append((document.place(line), parse_mount(line.value)))
    devs = tuple(
        (document.place(line), parse_dev(line.value))
        for line in document.main
        if line.kind == KEY and line.key.startswith("dev") and line.key[3:].isdigit()
    )
    pid = _init(host, ct_id)
    elsewhere = tuple(
        RuleLine("%s [%s]" % (document.place(line), line.section), line.value, True, parse_rule(line.value))
        for line in document.lines
        if line.part and line.kind == RAW and line.key == ALLOW
    )
    return ContainerFacts(
        ct_id,
        document.path,
        document.dialect,
        _unprivileged(document),
        tuple(rules),
        tuple(v1),
        elsewhere,
        devs,
        tuple(mounts),
        pid,
        start_time(host, pid) if pid else 0,
        changed,
        _started_with(host, ct_id) if pid and document.dialect == PVE else None,
    )


def _document(host: Host, ct_id: str) -> Tuple[Document, float]:
    pve = "/etc/pve/lxc/%s.conf" % ct_id
    if read_or_none(host, pve) is not None:
        path, dialect = pve, PVE
    else:
        path, dialect = "/var/lib/lxc/%s/config" % ct_id, LXC
    return follow(host, parse(host.read_bytes(path), dialect, path=path)), host.lstat(path).mtime


def _unprivileged(document: Document) -> bool:
    """`unprivileged` with any word but one for no (as in entries.py), or an id map of any kind."""
    if any(line.kind == RAW and line.key == "lxc.idmap" for line in document.judged):
        return True
    line = effective_keys(document.main).get("unprivileged")
    return bool(line) and line is not None and line.kind != DROPPED and truth(line.value) != "0"


def _init(host: Host, ct_id: str) -> Optional[int]:
    """Process id of the container's init as the host counts it, 0 when it does not run, None without lxc-info."""
    try:
        ran = host.run(["lxc-info", "-n", ct_id, "-p", "-H"])
    except Unrecorded:
        return None
    text = ran.out.strip()
    if ran.rc in (126, 127) or ran.timeout:
        return None
    return int(text) if ran.rc == 0 and text.isdigit() else 0


def start_time(host: Host, pid: int) -> float:
    """When a process started (proc(5): field 22 of stat, in clock ticks after `btime`); 0 when not known."""
    try:
        after_name = host.read("/proc/%d/stat" % pid).rpartition(")")[2].split()
        boot = next(int(line.split()[1]) for line in host.read("/proc/stat").splitlines() if line.startswith("btime "))
    except (OSError, Unrecorded):
        return 0
    return boot + int(after_name[19]) / CLOCK_TICKS


def _started_with(host: Host, ct_id: str) -> Optional[Tuple[str, ...]]:
    try:
        ran = host.run(["lxc-info", "-n", ct_id, "-c", ALLOW, "-H"])
    except Unrecorded:
        return None
    if ran.rc != 0:
        return None
    return tuple(
        line.partition("=")[2].strip() if line.startswith(ALLOW) else line.strip()
        for line in ran.out.splitlines()
        if line.strip()
    )
