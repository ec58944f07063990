# SPDX-License-Identifier: Apache-2.0
"""Every number written down for a device whose number the kernel hands out anew at each boot (HT707).

195 is registered and stays. nvidia-uvm, nvidia-caps and their like get 254 to 234, then 511 to 384, in the order in which
modules load: nobody can promise them. A path, or a rule that is renewed before the guest starts, survives.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from ..catalogue import finding
from ..door.host import Host, list_or_empty, read_or_none
from ..knobs.boot_units import DEVICES_UNIT, UNITS
from ..machine.devices import DeviceTable, device_table, is_dynamic
from ..model import ERROR, FAIL, FITS, OK, PROVED, WARN, Finding, Hint
from ..wanted.profile import PATH, Profile
from . import remedy
from .guests import Guest

CDI = ("/etc/cdi", "/var/run/cdi")
SCRIPTS = (
    "/etc/systemd/system",
    "/etc/udev/rules.d",
    "/etc/tmpfiles.d",
    "/etc/cron.d",
    "/etc/rc.local",
    "/var/spool/cron/crontabs/root",
)
"""Where people write a mknod that runs at boot; folders with their *.d folders."""
_MKNOD = re.compile(r"mknod\b[^\n;&|]*?(/dev/nvidia\S+)\s+c\s+(\d{1,9})\s+\d+")
_TMPFILES = re.compile(r"\s*c[+!=~^$-]*\s+(/dev/nvidia\S+)\s(?:.*\s)?(\d{1,9}):\d+\s*\Z")
_DEV_CHAR = re.compile(r"()/dev/char/(\d{1,9}):\d+")
_ITEM, _PATH, _MAJOR = (
    re.compile(r"\s*-\s"),
    re.compile(r"\s*(?:-\s+)?(?:path|hostPath):\s*[\"']?(/dev/[^\s\"']+)[\"']?\s*(?:#.*)?\Z"),
    re.compile(r"\s*(?:-\s+)?major:\s*(\d{1,9})\s*(?:#.*)?\Z"),
)


@dataclass(frozen=True)
class Written:
    """A number in a file: for which node ("" if the line does not say), and where it stands."""

    path: str
    major: int
    place: str


def judge(host: Host, guests: Sequence[Guest], profile: Profile) -> List[Finding]:
    """HT707 for each container and each file. Rules of the profile's containers are renewed by hosttune's boot unit."""
    try:
        table = device_table(host.read("/proc/devices"))
    except OSError as e:
        return [finding("HT903", ERROR, "/proc/devices", "it could not be read: %s" % e.strerror)]
    renewed = _unit_is_enabled(host) and remedy.acts(profile)
    found = [f for f in (_guest(guest, table, renewed and guest.id in profile.containers) for guest in guests) if f]
    found += [f for f in (_cdi(host, table), _scripts(host, table)) if f]
    return found or [finding("HT707", OK, "device numbers", "no file names a number that the next boot may change")]


def _unit_is_enabled(host: Host) -> bool:
    return DEVICES_UNIT in list_or_empty(host, UNITS + "/multi-user.target.wants")


def _guest(guest: Guest, table: DeviceTable, renewed: bool) -> Optional[Finding]:
    ours = [(place, major) for place, major in guest.numbers if _is_nvidias(major, table)]
    if not ours or not guest.uses_nvidia:
        return None
    subject, places = (
        "ct:" + guest.id,
        tuple(
            "%s allows %d (%s)" % (place, major, table.owner(major) or "nobody's now")
            for place, major in ours[:3]
        ),
    )
    if renewed:
        return finding(
            "HT707",
            OK,
            subject,
            "its numeric rules are renewed by %s before it starts" % DEVICES_UNIT,
            evidence=places,
            machine=subject,
        )
    return finding(
        "HT707",
        WARN,
        subject,
        "its rules hold numbers that the next boot may change; then CUDA fails with 999",
        have="major %s" % ", ".join(sorted({str(major) for _, major in ours})),
        want="paths, or rules renewed at boot",
        proof=PROVED,
        evidence=places,
        machine=subject,
        hint=Hint(
            "hosttune lxc sync %s --form %s" % (guest.id, guest.form),
            "host",
            "takes effect with its next start; or declare it (containers: in %s) and let the boot renew its rules: %s"
            % (PATH, remedy.APPLY),
            "apply",
        ),
    )


def _is_nvidias(major: int, table: DeviceTable) -> bool:
    """A number that NVIDIA's driver has, or that nobody has: it once was somebody's."""
    names = table.names.get(major, ())
    return not names or any(name.startswith("nvidia") for name in names)


def _cdi(host: Host, table: DeviceTable) -> Optional[Finding]:
    """A spec in /etc/cdi lives over the reboot; one in /var/run/cdi is gone, and is only told when it is wrong already."""
    now: List[Written] = []
    later: List[Written] = []
    for folder in CDI:
        for name in list_or_empty(host, folder):
            path = "%s/%s" % (folder, name)
            if not name.endswith((".json", ".yaml")):
                continue  # nobody reads it
            text = read_or_none(host, path) or ""
            for written in _json_nodes(text, path) if name.endswith(".json") else _yaml_nodes(text, path):
                if is_dynamic(written.major) and written.path.startswith("/dev/nvidia"):
                    wrong = written.major not in table.names or not _is_nvidias(written.major, table)
                    (now if wrong else later if folder == CDI[0] else []).append(written)
    if not now and not later:
        return None
    told = now or later
    return finding(
        "HT707",
        FAIL if now else WARN,
        "CDI spec",
        "%s has %d there, and %s"
        % (
            told[0].path,
            told[0].major,
            "no NVIDIA driver has that number now" if now else "the next boot may change it",
        ),
        have=str(told[0].major),
        want="the number of that day",
        proof=PROVED if now else FITS,
        decide="" if now else "grep nvidia-uvm /proc/devices after the next boot",
        evidence=tuple(written.place for written in told[:3]),
        hint=Hint(
            "systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service   # or, at each boot: "
            "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml",
            "host",
            "containers must be made anew to use it",
        ),
    )


def _yaml_nodes(text: str, path: str) -> Iterator[Written]:
    """deviceNodes of a spec as nvidia-ctk writes it: `path:` and `major:` of one list item, in any order."""
    device, major, at = "", 0, 0
    for number, line in enumerate(text.splitlines() + ["- "], 1):
        if _ITEM.match(line):
            if device and major:
                yield Written(device, major, "%s:%d %s has major %d" % (path, at, device, major))
            device, major = "", 0
        named, numbered = _PATH.match(line), _MAJOR.match(line)
        device = named.group(1) if named else device
        if numbered:
            major, at = int(numbered.group(1)), number


def _json_nodes(text: str, path: str) -> Iterator[Written]:
    try:
        todo: List[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while todo:
        item = todo.pop()
        todo += list(item.values()) if isinstance(item, dict) else item if isinstance(item, list) else []
        if isinstance(item, dict) and isinstance(item.get("path"), str) and isinstance(item.get("major"), int):
            yield Written(item["path"], item["major"], "%s: %s has major %d" % (path, item["path"], item["major"]))


def _scripts(host: Host, table: DeviceTable) -> Optional[Finding]:
    found = [written for path, text in _texts(host) for written in _in_script(path, text)]
    if not found:
        return None
    wrong = [
        written
        for written in found
        if not any(name.startswith("nvidia") for name in table.names.get(written.major, ()))
    ]
    told = (wrong or found)[0]
    return finding(
        "HT707",
        FAIL if wrong else WARN,
        told.path or "device node",
        "a node is made with the number %d at boot, and %s"
        % (told.major, "no NVIDIA driver has it now" if wrong else "the next boot may hand out another"),
        have=str(told.major),
        want="nvidia-modprobe -u -c=0",
        proof=PROVED,
        evidence=tuple(w.place for w in (wrong or found)[:3]),
        hint=Hint("nvidia-modprobe -u -c=0   # in place of that line", "host", "nothing is restarted"),
    )


def _texts(host: Host) -> Iterator[Tuple[str, str]]:
    for place in SCRIPTS:
        try:
            names = host.list(place)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            yield place, read_or_none(host, place) or ""
            continue
        for name in names:
            path = "%s/%s" % (place, name)
            if name.endswith(".d"):
                yield from (
                    ("%s/%s" % (path, inner), read_or_none(host, "%s/%s" % (path, inner)) or "")
                    for inner in list_or_empty(host, path)
                )
            elif name.endswith((".service", ".rules", ".conf")) or place.endswith("cron.d"):
                yield path, read_or_none(host, path) or ""


def _in_script(path: str, text: str) -> Iterator[Written]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("#", ";")):
            continue
        for pattern in (_MKNOD, _TMPFILES, _DEV_CHAR):
            match = pattern.search(line)
            if match and is_dynamic(int(match.group(2))):
                yield Written(match.group(1), int(match.group(2)), "%s:%d %s" % (path, number, line.strip()[:80]))
                break
