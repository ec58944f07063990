# SPDX-License-Identifier: Apache-2.0
"""What a host shows of its devices and of a running container: nodes, state, what opens inside, what a restart loses."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..door.host import Host, Unrecorded, list_or_empty, read_or_none
from ..machine import mountinfo, ports
from ..machine.devices import UVM, DeviceTable, Node, device_table, is_nvidia_path
from . import firsthand
from .entries import entries
from .needs import Need
from .store import Config, pve_container

LINKS_FOLLOWED = 5
UNKNOWN = -1
_SMALL_TMPFS = re.compile(r"/(dev|run|sys|proc)(/(?!shm(/|\Z)).*)?\Z")
"""tmpfs mounts that every start makes anew and that hold sockets and pid files. Not /dev/shm: models may lie there."""


def device_table_of(host: Host, paths: Iterable[str] = (), base: Optional[DeviceTable] = None) -> DeviceTable:
    """The host's devices: /proc/devices, NVIDIA's nodes, and those at `paths` (with what is in them, if folders).

    base: a table of this host of a moment ago, to which only `paths` are added. Raises OSError. Where a recording does not
    hold /dev, `nodes` is None.
    """
    if base is not None:
        return _with(host, base, paths)
    text = host.read("/proc/devices")
    try:
        nodes: Optional[Dict[str, Node]] = {}
        found = ["/dev/" + name for name in host.list("/dev") if name.startswith("nvidia")]
        for path in sorted(set(found) | set(paths)):
            nodes.update(_nodes(host, path, is_nvidia_path(path)))  # type: ignore[union-attr]
    except Unrecorded:
        nodes = None
    try:
        version = pve_container(host)
    except Unrecorded:
        version = None
    return device_table(text, nodes, version)


def _with(host: Host, base: DeviceTable, paths: Iterable[str]) -> DeviceTable:
    more: Dict[str, Node] = {}
    for path in sorted(set(paths) - set(base.nodes or {})):
        if not is_nvidia_path(path):
            more.update(_nodes(host, path, False))
    return base if base.nodes is None or not more else replace(base, nodes={**base.nodes, **more})


def _nodes(host: Host, path: str, must_be_recorded: bool) -> Dict[str, Node]:
    try:
        at, stat = path, host.lstat(path)
        for _ in range(LINKS_FOLLOWED):
            if stat.type != "link":
                break
            to = host.readlink(at)
            at = to if to.startswith("/") else _join(at.rpartition("/")[0], to)
            stat = host.lstat(at)
        if stat.type == "dir":
            out = {path: Node("dir")}
            for name in [] if path in ("/dev", "/dev/shm") else list_or_empty(host, at):
                out.update(_nodes(host, "%s/%s" % (path.rstrip("/"), name), must_be_recorded))
            return out
    except OSError:
        return {}
    except Unrecorded:
        if must_be_recorded:
            raise
        return {}
    if stat.type in ("char", "block"):
        major, minor = stat.rdev.split(":")
        return {path: Node(stat.type, int(major), int(minor), int(stat.mode, 8))}
    return {path: Node(stat.type)}


def _join(folder: str, relative: str) -> str:
    parts = folder.split("/")
    for part in relative.split("/"):
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def devices_for(host: Host, config: Config, base: Optional[DeviceTable] = None) -> DeviceTable:
    """The host's devices, and those that the config names. base: as device_table_of takes it."""
    return device_table_of(host, entries(config.document, config.document.judged).paths, base)


def running_pid(host: Host, config: Config) -> int:
    """Process id of the container's init as the host counts it; 0 when it does not run."""
    pid = firsthand.init_pid(host, config.folder, config.id)
    if pid:
        return pid
    ran = host.run(["lxc-info", *config.tool_options, "-p", "-H"])
    return int(ran.out) if ran.rc == 0 and ran.out.strip().isdigit() else 0


@dataclass(frozen=True)
class Inside:
    """One needed node as the container has it. `state`: ok, denied (EPERM: the device cgroup), or why it does not open."""

    need: Need
    state: str
    detail: str = ""


OPENS, DENIED, ABSENT, PLACEHOLDER, STALE, REPLACED, MODE, OTHER = (
    "ok", "denied", "absent", "placeholder", "stale", "replaced", "mode", "other")
NEEDS_RESTART = (ABSENT, PLACEHOLDER, STALE, REPLACED)
"""A rule does not help: the node itself is wrong inside, and only a start makes it anew."""


def look_inside(host: Host, pid: int, needed: Sequence[Need]) -> Tuple[Inside, ...]:
    """Open every needed node as the container's root would: its device cgroup, its mounts, and, in a user namespace, its
    user, whom a node's mode may refuse. Raises OSError where the child cannot get in (not root)."""
    needed = [need for need in needed if need.minor is not None]
    asked = host.inquire([need.path for need in needed], (), uid=_root_of(host, pid), pid=pid)
    return tuple(_inside(need, asked.nodes.get(need.path, {})) for need in needed)


def _root_of(host: Host, pid: int) -> Optional[int]:
    """The user on the host that is root in a process's user namespace (user_namespaces(7): uid_map), None for root."""
    try:
        rows = [row.split() for row in host.read("/proc/%d/uid_map" % pid).splitlines()]
    except (OSError, Unrecorded):
        return None
    outside = next((int(row[1]) for row in rows if len(row) == 3 and row[0] == "0" and row[1].isdigit()), 0)
    return outside or None


def _inside(need: Need, seen: Mapping[str, object]) -> Inside:
    if "errno" in seen:
        return Inside(need, ABSENT if seen["errno"] == "ENOENT" else OTHER, str(seen["errno"]))
    kind, rdev, opened = str(seen.get("type", "")), str(seen.get("rdev", "")), seen.get("open", "")
    if kind != "char":
        return Inside(need, PLACEHOLDER, "a %s in its place: the host had no node when the container started" % (kind or "?"))
    if need.major is not None and rdev != need.numbers:  # one of the same number is as good as the host's new one
        if seen.get("nlink") == 0:
            return Inside(need, REPLACED, "it is %s inside, the node that the host had before" % rdev)
        return Inside(need, STALE, "it is %s inside, and the driver has %s now" % (rdev, need.numbers))
    if opened == "ok":
        return Inside(need, OPENS)
    state = {"EPERM": DENIED, "EACCES": MODE}.get(str(opened), OTHER)
    return Inside(need, state, str(opened) if isinstance(opened, str) else "no answer to open()")


@dataclass(frozen=True)
class Tmpfs:
    """A tmpfs of the container's own, by its mount point inside, and the bytes that lie in it (UNKNOWN: some number)."""

    point: str
    used: int


def own_tmpfs(host: Host, pid: int) -> Tuple[Tmpfs, ...]:
    """tmpfs mounts that end with the container and hold something. One that the host has too (a bind) is not lost. A
    covered one is not asked: what lies over it would answer in its place, and may be a file system that never does."""
    ours = {mount.device for mount in mountinfo.parse(host.read(mountinfo.PATH))}
    out: List[Tmpfs] = []
    seen = set()
    mounts = mountinfo.parse(host.read("/proc/%d/mountinfo" % pid))
    for number, mount in enumerate(mounts):
        if mount.kind != "tmpfs" or mount.device in ours or mount.device in seen or _SMALL_TMPFS.match(mount.point):
            continue
        seen.add(mount.device)
        over = mountinfo.holding(mounts[number + 1 :], mount.point) is not None
        try:
            used = UNKNOWN if over else host.statvfs("/proc/%d/root%s" % (pid, mount.point)).used
        except OSError:  # it is there, and may hold anything
            used = UNKNOWN
        if used:
            out.append(Tmpfs(mount.point, used))
    return tuple(out)


def gpu_processes(host: Host, config: Config, devices: DeviceTable) -> Tuple[Tuple[int, str], ...]:
    """Processes of the container that hold a GPU node open: (pid on the host, command name)."""
    holders: Dict[int, str] = {}
    for driver in ("nvidia", UVM):
        major = devices.major(driver)
        if major is not None:
            holders.update(host.holders("%d:*" % major))
    mark = re.compile(r"(/lxc/%s|/lxc\.payload\.%s)(/|\Z)" % ((re.escape(config.id),) * 2), re.MULTILINE)
    return tuple((pid, name) for pid, name in sorted(holders.items())
                 if mark.search(read_or_none(host, "/proc/%d/cgroup" % pid) or ""))


def losses(host: Host, config: Config, pid: int, devices: DeviceTable,
           serves: Sequence[Tuple[str, int]] = ()) -> Tuple[str, ...]:
    """What a restart would destroy, one line each. serves: (engine, port) pairs whose open connections are counted."""
    out = ["%s in its own tmpfs %s" % (_size(tmpfs.used), tmpfs.point) for tmpfs in own_tmpfs(host, pid)]
    out += ["GPU process %d (%s)" % process for process in gpu_processes(host, config, devices)]
    for engine, port in serves:
        count = ports.connections(host, port, pid)
        if count:
            out.append("%d open connection%s of engine %s (port %d)" % (count, "s" * (count > 1), engine, port))
    return tuple(out)


def _size(count: int) -> str:
    if count == UNKNOWN:
        return "what could not be seen"
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return "%.0f %s" % (size, unit) if unit == "bytes" else "%.1f %s" % (size, unit)
