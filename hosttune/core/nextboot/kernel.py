# SPDX-License-Identifier: Apache-2.0
"""Which kernel boots next: by proxmox-boot-tool's pins, GRUB's menu, or the loader entries of systemd-boot."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from ..catalogue import finding
from ..door.host import Host, bytes_or_none, list_or_empty, read_or_none
from ..model import ERROR, FITS, OK, PROVED, WARN, Finding, Hint, natural
from . import grub

PROXMOX_ESPS = "/etc/kernel/proxmox-boot-uuids"
PROXMOX_PINS = ("/etc/kernel/next-boot-pin", "/etc/kernel/proxmox-boot-pin")
"""proxmox-boot-tool's files: the pin for one boot, then the lasting one."""
PROXMOX_WORDS = "/etc/kernel/cmdline"
EFI_VARIABLES = "/sys/firmware/efi/efivars"
LOADER_FOLDERS = ("/boot/loader", "/efi/loader", "/boot/efi/loader")
_NAME = r"\d[\w.+~-]*"
_RELEASE = re.compile(r"(?:.*/)?(?:vmlinuz|vmlinux|linux)-(%s)\Z" % _NAME)


@dataclass(frozen=True)
class NextKernel:
    """release: as uname -r will say. how: what chooses it. initrd: its file here, "" when the choice names none.
    words: its command line, None when it was not to be seen. sure: False when only the newest kernel is known. image: its file,
    "" for the one in /boot of that release."""

    release: str
    how: str
    initrd: str = ""
    words: Optional[Tuple[str, ...]] = None
    sure: bool = True
    image: str = ""


def next_kernel(host: Host) -> Optional[NextKernel]:
    """The kernel of the next boot; None when no kernel lies in /boot. Raises OSError for what cannot be read."""
    order = (_proxmox, _grub, _loader)
    if _variable(host, "LoaderInfo").startswith("systemd-boot"):  # it booted this machine: a grub.cfg is of before
        order = (_proxmox, _loader, _grub)
    for choose in order:
        found = choose(host)
        if found is not None:
            return found
    newest = _newest(host)
    how = "the newest in /boot; no boot menu was found"
    return NextKernel(newest, how, _initrd(newest), sure=False) if newest else None


def judge(host: Host, kernel: Optional[NextKernel]) -> Finding:
    """HT701."""
    running = host.uname()[1]
    if kernel is None:
        return finding(
            "HT701",
            ERROR,
            "next kernel",
            "no kernel lies in /boot: what boots next is decided outside this machine",
            hint=Hint("ls /boot", "host", "", "look"),
        )
    said = "%s boots next%s" % (kernel.release, "" if kernel.release != running else ", as now")
    image = kernel.image or "/boot/vmlinuz-" + kernel.release
    folder, _, name = image.rpartition("/")
    if name not in list_or_empty(host, folder or "/"):
        pinned = kernel.how.startswith(PROXMOX_PINS)
        return finding(
            "HT701",
            WARN,
            "next kernel",
            "%s, and there is no %s" % (said, image),
            have="absent",
            want=image,
            proof=PROVED,
            evidence=(kernel.how,),
            hint=Hint("proxmox-boot-tool kernel unpin", "host", "nothing is restarted", "apply")
            if pinned
            else Hint(
                "ls -l %s" % shlex.quote(folder), "host", "install that kernel again, or make another the default", "look"
            ),
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
            decide="grep -r GRUB_DEFAULT /etc/default/grub /etc/default/grub.d; bootctl list",
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
        if pinned and not re.fullmatch(_NAME, pinned):
            raise ValueError("%s names no kernel" % path)
        if pinned:
            return NextKernel(pinned, "%s pins it" % path, _initrd(pinned), line)
    newest = _newest(host)
    how = "proxmox-boot-tool boots the newest; nothing is pinned in /etc/kernel"
    return NextKernel(newest, how, _initrd(newest), line) if newest else None


def _grub(host: Host) -> Optional[NextKernel]:
    for folder in grub.FOLDERS:
        text = read_or_none(host, folder + "/grub.cfg")
        if text is None:
            continue
        if grub.BLS.search(text):
            return _entries(host, ("/boot/loader",), _from_block(host, folder, "saved_entry"))
        menu, default = grub.parse(text)
        wanted = _from_block(host, folder, default)
        entry = grub.chosen(menu, wanted[0] or "0") or grub.chosen(menu, "0")
        release = _RELEASE.match(entry.linux) if entry else None
        if entry is None or release is None:
            continue
        how = "%s/grub.cfg:%d %s (%s)" % (folder, entry.line, entry.title, wanted[1] or "default 0")
        initrd = "/boot/" + entry.initrd.rpartition("/")[2] if entry.initrd else ""
        return NextKernel(release.group(1), how, initrd, entry.words)
    return None


def _from_block(host: Host, folder: str, default: str) -> Tuple[str, str]:
    """The entry that GRUB's environment block, or else the menu, names; and in words who does."""
    block = grub.environment(read_or_none(host, folder + "/grubenv") or "")
    once = block.get("next_entry", "")
    wanted = once or (block.get("saved_entry", "") if "saved_entry" in default else default)
    return wanted, "for the next boot alone" if once else "default " + wanted if wanted else ""


def _loader(host: Host) -> Optional[NextKernel]:
    """systemd-boot: an entry asked for once, the choice of `bootctl set-default`, the glob of loader.conf, or the newest."""
    for name, why in (("LoaderEntryOneShot", "for the next boot alone"), ("LoaderEntryDefault", "bootctl set-default")):
        chosen = _variable(host, name)
        if chosen and not chosen.startswith("@"):
            return _entries(host, LOADER_FOLDERS, (chosen, why)) or _entries(host, LOADER_FOLDERS, ("", ""))
    for folder in LOADER_FOLDERS:
        rows = dict(_row(line) for line in (read_or_none(host, folder + "/loader.conf") or "").splitlines())
        wanted = rows.get("default", "")
        found = _entries(host, (folder,), (wanted, "default " + wanted if wanted else ""))
        if found:
            return found
    return None


def _entries(host: Host, folders: Sequence[str], wanted: Tuple[str, str]) -> Optional[NextKernel]:
    """One of the entries of the Boot Loader Specification: the one that is wanted (a glob, and who says so), or the newest."""
    for folder in folders:
        entries = {}
        for name in list_or_empty(host, folder + "/entries"):
            if not name.endswith(".conf"):
                continue
            text = read_or_none(host, "%s/entries/%s" % (folder, name)) or ""
            rows = dict(_row(line) for line in text.splitlines())
            release = rows.get("version") or _release(rows.get("linux", ""))
            if re.fullmatch(_NAME, release) and rows.get("linux"):
                entries[name] = (release, rows)
        if not entries:
            continue
        named = [name for name in entries if wanted[0] and _glob(wanted[0]).match(name)]
        name = max(named or entries, key=lambda n: natural(entries[n][0]))
        release, rows = entries[name]
        how = "%s/entries/%s (%s)" % (folder, name, wanted[1] if named else "the newest")
        root = folder.rpartition("/")[0]
        initrd = rows["initrd"].split()[-1] if rows.get("initrd") and "$" not in rows["initrd"] else ""
        return NextKernel(
            release,
            how,
            root + initrd if initrd else "",
            tuple(rows.get("options", "").split()),
            not wanted[0] or bool(named),
            root + rows["linux"].split()[0],
        )
    return None


def _variable(host: Host, name: str) -> str:
    """A variable that systemd-boot keeps in the firmware: four bytes of attributes, then UTF-16. "" where there is none."""
    data = bytes_or_none(host, "%s/%s-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f" % (EFI_VARIABLES, name)) or b""
    return data[4:].decode("utf-16-le", "replace").strip("\0")


def _row(line: str) -> Tuple[str, str]:
    name, *value = line.split(None, 1)[:2] or [""]
    return name, value[0].strip() if value else ""


def _release(path: str) -> str:
    match = _RELEASE.match(path)
    return match.group(1) if match else ""


def _glob(pattern: str) -> "re.Pattern[str]":
    return re.compile("%s(\\.conf)?\\Z" % re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."))
