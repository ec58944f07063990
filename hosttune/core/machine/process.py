# SPDX-License-Identifier: Apache-2.0
"""One process, or a unit's main process, as a doctor looks through its eyes: its user, environment, mounts, limits, libraries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Mapping, Tuple

from ..door.host import ENV_PREFIXES, Host, errname
from ..model import Refused

SETTINGS = (
    *(
        "LoadState",
        "ActiveState",
        "MainPID",
        "User",
        "PrivateDevices",
        "DevicePolicy",
        "DeviceAllow",
        "LimitAS",
        "FragmentPath",
    ),
    *("RootDirectory", "RootImage"),
)
_NAME = re.compile(r"[\w@.:\\][\w@.:\\-]*\Z", re.ASCII)
MAPPED = re.compile(r"/(libcuda|libasan|libnvidia-ml|libclang_rt\.asan)[^/]*$", re.MULTILINE)
"""Libraries of /proc/PID/maps that say something about CUDA; no other line is kept."""
MAPS = re.compile(r"/proc/\d+/maps\Z")


@dataclass(frozen=True)
class Process:
    """pid 0: the unit does not run. own_view: it has another /dev than this process. limit: its address space in bytes, or
    unlimited. settings: what systemd says of the unit, empty for a bare process."""

    pid: int = 0
    comm: str = ""
    uid: int = 0
    own_view: bool = False
    limit: str = "unlimited"
    env: Mapping[str, str] = field(default_factory=dict)
    mapped: Tuple[str, ...] = ()
    unit: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


def unit(host: Host, name: str) -> Process:
    """A unit and its main process. Refused for one that systemd does not know."""
    name = name if "." in name else name + ".service"
    if not _NAME.match(name):
        raise Refused("that names no unit, or many", name, "systemctl list-units --type=service")
    ran = host.run(("systemctl", "show", "-p", ",".join(SETTINGS), "--", name))
    settings: Dict[str, str] = {}
    for line in ran.out.splitlines():
        key, _, value = line.partition("=")
        settings[key] = "%s, %s" % (settings[key], value) if settings.get(key) else value  # DeviceAllow comes a line an entry
    if ran.rc or settings.get("LoadState", "not-found") == "not-found":
        why = (
            "there is no such unit" if not ran.rc else (ran.err.strip().splitlines() or ["systemd does not answer"])[0]
        )
        raise Refused(why, name, "systemctl list-units --type=service")
    pid = settings.get("MainPID", "0")
    seen = process(host, int(pid)) if re.match(r"[1-9]\d{0,8}\Z", pid) else Process()
    return Process(seen.pid, seen.comm, seen.uid, seen.own_view, seen.limit, seen.env, seen.mapped, name, settings)


def process(host: Host, pid: int) -> Process:
    """A running process. Refused when it is not there, or not to be looked at by this caller."""
    base = "/proc/%d/" % pid
    try:
        comm, status = host.read(base + "comm").strip(), host.read(base + "status")
        variables = host.read(base + "environ").split("\0")
        limits, maps = host.read(base + "limits"), host.read(base + "maps")
        own = host.readlink(base + "ns/mnt") != host.readlink("/proc/self/ns/mnt")
    except OSError as e:
        if errname(e) in ("ENOENT", "ESRCH"):
            raise Refused("there is no process %d" % pid, "--pid", "ps -e | grep PROGRAM")
        raise Refused(
            "%s: only root sees into another user's process" % errname(e), base, "sudo hosttune doctor --pid %d" % pid
        )
    uid = re.search(r"^Uid:\s*\d+\s+(\d+)", status, re.MULTILINE)
    limit = re.search(r"^Max address space\s+(\S+)", limits, re.MULTILINE)
    env: Dict[str, str] = dict(v.partition("=")[::2] for v in variables if v.startswith(ENV_PREFIXES))
    mapped = tuple(dict.fromkeys(line.split(None, 5)[-1] for line in maps.splitlines() if MAPPED.search(line)))
    return Process(
        pid, comm, int(uid.group(1)) if uid else 0, own, limit.group(1) if limit else "unlimited", env, mapped
    )
