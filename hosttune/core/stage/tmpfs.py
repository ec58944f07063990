# SPDX-License-Identifier: Apache-2.0
"""hosttune's own tmpfs at /dev/shm/models: root's, so that systemd-logind's RemoveIPC (which empties /dev/shm of a user at
his last logout) and a unit's DynamicUser leave it alone; as large as the declared models; of huge pages.

Where systemd runs, a mount unit makes it, now and at each boot before containers start. Elsewhere mount(8) does.
Options (kernel doc filesystems/tmpfs): huge=within_size gives 2 MiB pages but to the tail of a file; noswap (Linux 6.4);
mpol=interleave spreads pages over all nodes with memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

from .. import engine
from ..door.host import Host, errname, list_or_empty, read_or_none
from ..machine import mountinfo
from ..model import Finding, Refused, Step
from .manifest import MOUNT
from .space import size_text

WHAT = "hosttune-models"
"""The mount's source: a tmpfs has none, so its name says who made it."""
UNIT_FOLDER = "/etc/systemd/system"
PAGE = 2 << 20
MARGIN_SHARE, MARGIN_LEAST = 64, 64 << 20
THP = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
"""Exists where the kernel has huge pages for shared memory; `deny` in brackets overrides every mount."""
FINDING = "HT507"


@dataclass(frozen=True)
class Mounted:
    """A mount as the kernel shows it. device: "0:58". size, used: bytes. inodes: how many files more it takes, None for any."""

    source: str
    type: str
    options: Tuple[str, ...]
    device: str
    size: int
    used: int
    inodes: Optional[int] = None

    def option(self, name: str) -> str:
        """The value of NAME=VALUE, NAME itself for a flag, "" if it is not set."""
        for text in self.options:
            key, _, value = text.partition("=")
            if key == name:
                return value or key
        return ""


@dataclass(frozen=True)
class Place:
    """What is at MOUNT, and what this kernel and init offer. huge: the bracketed word of shmem_enabled, "" without huge
    pages. nodes: NUMA nodes. unit: text of the mount unit, None for none."""

    mounted: Optional[Mounted]
    systemd: bool
    huge: str
    nodes: int
    release: Tuple[int, ...]
    unit: Optional[str]


def unit_name(path: str) -> str:
    """A path as systemd names its mount unit (systemd-escape --path --suffix=mount)."""
    out = []
    for n, byte in enumerate(path.strip("/").encode()):
        char = chr(byte)
        plain = char.isascii() and (char.isalnum() or char in ":_" or char == "." and n)
        out.append("-" if char == "/" else char if plain else "\\x%02x" % byte)
    return "".join(out) + ".mount"


UNIT = "%s/%s" % (UNIT_FOLDER, unit_name(MOUNT))


def see(host: Host) -> Place:
    """What is there. Refused when somebody else's mount or files are at MOUNT. Raises OSError."""
    mounted = mounted_at(host, host.read("/proc/self/mountinfo"), MOUNT)
    if mounted and (mounted.source, mounted.type) != (WHAT, "tmpfs"):
        raise Refused("a %s that is not hosttune's is mounted there (%s)" % (mounted.type, mounted.source), MOUNT,
                      "umount %s, if nothing needs it" % MOUNT)
    if not mounted:
        _refuse_others(host)
    nodes = [name for name in list_or_empty(host, "/sys/devices/system/node") if re.match(r"node\d+\Z", name)]
    word = re.search(r"\[(\w+)\]", read_or_none(host, THP) or "")
    release = tuple(int(part) for part in re.findall(r"\d+", host.uname()[1])[:2])
    systemd = "system" in list_or_empty(host, "/run/systemd")
    return Place(mounted, systemd, word.group(1) if word else "", len(nodes), release, read_or_none(host, UNIT))


def _refuse_others(host: Host) -> None:
    """Anybody may make something in /dev/shm, and mount(8) follows a link: what lies at MOUNT must be root's own empty folder."""
    try:
        names = host.list(MOUNT)
    except OSError as e:
        if errname(e) == "ENOENT":
            return
        raise Refused("something that is no folder is there", MOUNT, "ls -ld %s" % MOUNT)
    if names:
        raise Refused("a folder with files that hosttune did not make is there, and a mount would hide them", MOUNT,
                      "mv %s %s.old" % (MOUNT, MOUNT))
    seen = host.lstat(MOUNT)
    if seen.type != "dir" or seen.uid:
        raise Refused("somebody else made it (a %s of uid %d), and a mount would follow it" % (seen.type, seen.uid), MOUNT,
                      "ls -ld %s; rm -d %s" % (MOUNT, MOUNT))


def mounted_at(host: Host, text: str, point: str, root: str = "") -> Optional[Mounted]:
    """The uppermost mount at a point, from the text of a mountinfo. root: where that namespace's files are."""
    mount = mountinfo.at(mountinfo.parse(text), point)
    if mount is None:
        return None
    space = host.statvfs(root + point)
    return Mounted(mount.source, mount.kind, mount.options, mount.device, space.size, space.used, space.inodes)


def size_for(models: int, most: int) -> int:
    """Bytes for the mount: the models and a margin, whole huge pages, never more than `most`."""
    want = models + max(models // MARGIN_SHARE, MARGIN_LEAST)
    return max(PAGE, min(want + PAGE - 1, most) // PAGE * PAGE)


def ladder(place: Place, size: int) -> List[str]:
    """Mount options, best first: each entry leaves out one more of those that a kernel may refuse."""
    newer = []
    if place.nodes > 1:
        newer.append("mpol=interleave")
    if place.huge:
        newer.append("huge=within_size")
    if place.release >= (6, 4):
        newer.append("noswap")
    return [_options(size, newer[:count]) for count in range(len(newer), -1, -1)]


def _options(size: int, newer: List[str]) -> str:
    return ",".join(["nosuid", "nodev", "noexec", "mode=0755", "uid=0", "gid=0", "size=%d" % size] + newer)


def _options_now(mounted: Mounted, size: int) -> str:
    """The same for a mount that is there: what the kernel took."""
    took = [text.partition(":")[0] for text in mounted.options if re.match(r"(mpol|huge)=|noswap\Z", text)]
    return _options(size, took)


def unit_text(options_: str) -> str:
    """The mount unit. It is wanted by local-fs.target, so it is there before any container; its failure stops no boot."""
    return (
        "# Written by hosttune: models in memory, for engines of this host and (read-only) of its containers.\n"
        "[Unit]\nDescription=Models in memory\nConditionKernelCommandLine=!hosttune=off\n\n"
        "[Mount]\nWhat=%s\nWhere=%s\nType=tmpfs\nOptions=%s\nTimeoutSec=30\n\n"
        "[Install]\nWantedBy=local-fs.target\n" % (WHAT, MOUNT, options_)
    )


def plan(place: Place, size: int) -> Tuple[str, Tuple[str, ...], str]:
    """("", ...) when the mount is large enough and will be there at the next boot; else what to do, its argv, and why."""
    lasting = not place.systemd or place.unit is not None
    if place.mounted is None:
        argv = ("systemctl", "start", unit_name(MOUNT)) if place.systemd else _mount(ladder(place, size)[0])
        return "mount", argv, "a tmpfs of %s for models is not mounted" % size_text(size)
    if place.mounted.size < size:
        return "remount", _remount(place, size), "the tmpfs holds %s, want %s" % (
            size_text(place.mounted.size), size_text(size))
    if not lasting:
        return "unit", ("systemctl", "enable", unit_name(MOUNT)), "the tmpfs would not be mounted at the next boot"
    return "", (), ""


def _mount(options_: str) -> Tuple[str, ...]:
    return ("mount", "-t", "tmpfs", "-o", options_, WHAT, MOUNT)


def _remount(place: Place, size: int) -> Tuple[str, ...]:
    # The flags of the mount itself (nosuid ...) must be said again, the file system's own options stay.
    return ("mount", "-o", "remount,nosuid,nodev,noexec,size=%d" % size, WHAT, MOUNT)


def prepare(host: Host, place: Place, size: int) -> List[Finding]:
    """Mount, enlarge, or make it last; a converged place is not touched. Read back. Findings for a unit that could not be
    written; Refused when the kernel does not mount it, or the size did not stick."""
    todo, argv, _ = plan(place, size)
    if not todo:
        return []
    failed: List[Finding] = []
    if place.mounted is None:
        failed += _mounted_new(host, place, size)
    else:
        if todo == "remount":
            _run(host, argv)
        failed += _unit(host, place, _options_now(place.mounted, max(size, place.mounted.size)))
    now = see(host).mounted
    if now is None or now.size < size:
        have = "not mounted" if now is None else size_text(now.size)
        raise Refused("it did not stick: %s, want %s" % (have, size_text(size)), MOUNT, "dmesg | tail")
    return failed


def _mounted_new(host: Host, place: Place, size: int) -> List[Finding]:
    choices = ladder(place, size)
    for chosen in choices:
        try:
            if place.systemd:
                failed = _unit(host, place, chosen)
                if failed:
                    return failed
                _run(host, ("systemctl", "start", unit_name(MOUNT)))
                # After a boot with hosttune=off systemd skips the unit, and calls that a success. That word keeps hosttune
                # out of the boot, not out of its owner's hands.
                if mounted_at(host, host.read("/proc/self/mountinfo"), MOUNT):
                    return []
            _run(host, ("mkdir", "-p", "-m", "0755", MOUNT))
            _refuse_others(host)  # again: it may have been made by another since
            _run(host, _mount(chosen))
            return []
        except Refused:
            if chosen == choices[-1]:
                raise
    return []


def _unit(host: Host, place: Place, options_: str) -> List[Finding]:
    if not place.systemd:
        return []
    before, after = read_or_none(host, UNIT), unit_text(options_)  # not place.unit: a step of the ladder may have written it
    if before != after:
        from ..knobs import BY_ID  # only a change needs every setting, and most runs find none to make

        failed = engine.apply(host, [Step(FINDING, MOUNT, "replace", UNIT, before, after)], BY_ID)
        if failed:
            return failed
        _run(host, ("systemctl", "daemon-reload"))
    _run(host, ("systemctl", "enable", "--no-reload", unit_name(MOUNT)))  # it has been told, and that takes its time
    return []


def _run(host: Host, argv: Tuple[str, ...]) -> None:
    ran = host.execute(argv)
    if ran.rc:
        said = (ran.err or ran.out).strip().splitlines() or ["exit code %d" % ran.rc]
        raise Refused("%s failed: %s" % (" ".join(argv), said[0]), MOUNT, " ".join(argv))
