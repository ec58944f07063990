# SPDX-License-Identifier: Apache-2.0
"""The kernel command line: what this kernel was built and started with, and the edit that a person makes for the next start.

hosttune never writes it. Proxmox VE has two places, and the wrong one is ignored in silence: GRUB's file, and
/etc/kernel/cmdline for systemd-boot (hosts on ZFS with UEFI). Which loader started this machine stands in the EFI variable
LoaderInfo (systemd's boot loader interface); without it, it was GRUB.
"""

from __future__ import annotations

import re
import shlex
from typing import List, Optional, Tuple

from ..door.host import Host, read_or_none

NOW = "/proc/cmdline"
GRUB, LOADER = "/etc/default/grub", "/etc/kernel/cmdline"
LOADER_INFO = "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
PROXMOX_ESPS = "/etc/kernel/proxmox-boot-uuids"


def words(host: Host) -> List[str]:
    """The parameters of the running kernel, in order."""
    return (read_or_none(host, NOW) or "").split()


def value(host: Host, name: str) -> Optional[str]:
    """The last value of `name=`, "" for the bare word, None when it is not there. Dash and underscore are one to the kernel."""
    found = None
    for word in words(host):
        key, _, said = word.partition("=")
        if key.replace("-", "_") == name.replace("-", "_"):
            found = said
    return found


def built_with(host: Host, option: str) -> bool:
    """Whether the running kernel was built with this option, as its package's config says; False where there is none."""
    return "\n%s=y\n" % option in "\n" + (read_or_none(host, "/boot/config-" + host.uname()[1]) or "")


def edit(host: Host, add: str = "", drop: str = "") -> Tuple[str, str]:
    """(file, one line to paste) that puts the parameter `add` ("iommu=pt") in for the next boot, in place of what has its
    name now, or takes the parameter of the name `drop` out. It takes effect at the next boot."""
    name = drop or add.partition("=")[0]
    here = value(host, name) is not None
    word = r"\(^\|[ \"]\)%s\(=[^ \"]*\)\?" % re.escape(name)
    if _systemd_boot(host):
        change = "s/%s/\\1%s/" % (word, _escaped(add)) if here else "1 s/$/ %s/" % _escaped(add)
        renew = (
            "proxmox-boot-tool refresh" if read_or_none(host, PROXMOX_ESPS) is not None else "kernel-install add-all"
        )
        return LOADER, "sed -i %s %s && %s" % (shlex.quote(change), LOADER, renew)
    put = "s/%s/\\1%s/" % (word, _escaped(add)) if here else 's/="/&%s /' % _escaped(add)
    change = ("/^GRUB_CMDLINE_LINUX/ " if here else "/^GRUB_CMDLINE_LINUX_DEFAULT=/ ") + put
    return GRUB, "sed -i %s %s && update-grub" % (shlex.quote(change), GRUB)


def _escaped(text: str) -> str:
    return re.sub(r"([\\/&])", r"\\\1", text)


def _systemd_boot(host: Host) -> bool:
    try:
        told = host.read_bytes(LOADER_INFO)
    except OSError:
        return False
    return "systemd-boot" in told[4:].decode("utf-16-le", "replace")
