# SPDX-License-Identifier: Apache-2.0
"""Which kernel boots next: by proxmox-boot-tool's pins, GRUB's menu, or the loader entries of systemd-boot."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

from ..catalogue import finding
from ..host import Host, list_or_empty, read_or_none
from ..model import ERROR, FITS, OK, PROVED, WARN, Finding, Hint, natural
from . import grub

PROXMOX_ESPS = "/etc/kernel/proxmox-boot-uuids"
PROXMOX_PINS = ("/etc/kernel/next-boot-pin", "/etc/kernel/proxmox-boot-pin")
"""proxmox-boot-tool's files: the pin for one boot, then the lasting one."""
PROXMOX_WORDS = "/etc/kernel/cmdline"
LOADER_FOLDERS = ("/boot/loader", "/efi/loader", "/boot/efi/loader")
_RELEASE = re.compile(r"(?:.*/)?(?:vmlinuz|vmlinux|linux)-(\d\S*)\Z")


@dataclass(frozen=True)
class NextKernel:
    """release: as uname -r will say. how: what chooses it. initrd: its file here, "" when the choice names none.
    words: its command line, None when it was not to be seen. sure: False when only the newest kernel is known."""

    release: str
    how: str
    initrd: str = ""
    words: Optional[Tuple[str, ...]] = None
    sure: bool = True


def next_kernel(host: Host) -> Optional[NextKernel]:
    """The kernel of the next boot; None when no kernel lies in /boot. Raises OSError for what cannot be read."""
    for choose in (_proxmox, _grub, _loader):
        found = choose(host)
        if found is not None:
            return found
    newest = _newest(host)
    return (
        NextKernel(newest, "the newest in /boot; no boot menu was found", _initrd(newest), sure=False)
        if newest
        else None
    )


def judge(host: Host, kernel: Optional[NextKernel]) -> Finding:
    """HT701."""
    running = host.uname()[1]
    if kernel is None:
        return finding(
            "HT701",
            ERROR,
            "next kernel",
            "no kernel lies in /boot: what boots next is decided outside this machine",
            hint=Hint("ls /boot; proxmox-boot-tool kernel list", "host"),
        )
    said = "%s boots next%s" % (kernel.release, "" if kernel.release != running else ", as now")
    if "/boot/vmlinuz-" + kernel.release not in ["/boot/" + name for name in list_or_empty(host, "/boot")]:
        return finding(
            "HT701",
            WARN,
            "next kernel",
            "%s, and there is no /boot/vmlinuz-%s" % (said, kernel.release),
            have="absent",
            want="/boot/vmlinuz-" + kernel.release,
            proof=PROVED,
            evidence=(kernel.how,),
            hint=Hint("update-grub", "host", "nothing"),
        )
    if not kernel.sure:
        return finding(
            "HT701",
            WARN,
            "next kernel",
            "%s if the boot menu takes the newest" % said,
            have=running,
            want=kernel.release,
            proof=FITS,
            evidence=(kernel.how,),
            decide="look at the boot menu's default",
        )
    return finding(
        "HT701", OK, "next kernel", said, have=running, want=kernel.release, proof=PROVED, evidence=(kernel.how,)
    )


def releases(host: Host) -> List[str]:
    """The kernels in /boot, oldest first."""
    found = [_RELEASE.match(name) for name in list_or_empty(host, "/boot") if name.startswith("vmlinuz-")]
    return sorted((match.group(1) for match in found if match), key=natural)


def headers(release: str) -> str:
    """The package of a kernel's headers: Proxmox VE renamed its own with kernel 6.2."""
    if not release.endswith("-pve"):
        return "linux-headers-" + release
    number = [int(n) for n in re.findall(r"\d+", release)[:2]]
    return ("proxmox-headers-" if number >= [6, 2] else "pve-headers-") + release


def _newest(host: Host) -> str:
    return (releases(host) or [""])[-1]


def _initrd(release: str) -> str:
    return "/boot/initrd.img-" + release


def _proxmox(host: Host) -> Optional[NextKernel]:
    if not (read_or_none(host, PROXMOX_ESPS) or "").strip():
        return None
    words = read_or_none(host, PROXMOX_WORDS)
    line = tuple(words.split()) if words is not None else None
    for path in PROXMOX_PINS:
        pinned = (read_or_none(host, path) or "").strip()
        if pinned:
            return NextKernel(pinned, "%s pins it" % path, _initrd(pinned), line)
    newest = _newest(host)
    how = "proxmox-boot-tool boots the newest; nothing is pinned in /etc/kernel"
    return NextKernel(newest, how, _initrd(newest), line) if newest else None


def _grub(host: Host) -> Optional[NextKernel]:
    text = read_or_none(host, grub.CONFIG)
    if text is None:
        return None
    menu, default = grub.parse(text)
    block = grub.environment(read_or_none(host, grub.ENVIRONMENT) or "")
    once = block.get("next_entry", "")
    wanted = once or (block.get("saved_entry", "") if "saved_entry" in default else default) or "0"
    entry = grub.chosen(menu, wanted) or grub.chosen(menu, "0")
    release = _RELEASE.match(entry.linux) if entry else None
    if entry is None or release is None:
        return None
    how = "%s:%d %s (%s)" % (
        grub.CONFIG,
        entry.line,
        entry.title,
        "for the next boot alone" if once else "default " + wanted,
    )
    initrd = "/boot/" + entry.initrd.rpartition("/")[2] if entry.initrd else ""
    return NextKernel(release.group(1), how, initrd, entry.words)


def _loader(host: Host) -> Optional[NextKernel]:
    """systemd-boot: the default of loader.conf is a glob over entry names; without one the newest version is taken."""
    for folder in LOADER_FOLDERS:
        entries = {}
        for name in list_or_empty(host, folder + "/entries"):
            rows = dict(
                _row(line) for line in (read_or_none(host, "%s/entries/%s" % (folder, name)) or "").splitlines()
            )
            release = rows.get("version") or _release(rows.get("linux", ""))
            if name.endswith(".conf") and release and "linux" in rows:
                entries[name] = (release, rows)
        if not entries:
            continue
        wanted = dict(_row(line) for line in (read_or_none(host, folder + "/loader.conf") or "").splitlines()).get(
            "default", ""
        )
        named = [name for name in entries if wanted and _glob(wanted).match(name)]
        name = max(named or entries, key=lambda n: natural(entries[n][0]))
        release, rows = entries[name]
        how = "%s/entries/%s (%s)" % (folder, name, "default " + wanted if named else "the newest")
        return NextKernel(release, how, "", tuple(rows.get("options", "").split()), not wanted or bool(named))
    return None


def _row(line: str) -> Tuple[str, str]:
    name, _, value = line.strip().partition(" ")
    return name, value.strip()


def _release(path: str) -> str:
    match = _RELEASE.match(path)
    return match.group(1) if match else ""


def _glob(pattern: str) -> "re.Pattern[str]":
    return re.compile("%s(\\.conf)?\\Z" % re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."))
