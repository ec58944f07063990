# SPDX-License-Identifier: Apache-2.0
"""The next kernel's initramfs: there, and made after the last change of what it carries a copy of (HT704)."""

from __future__ import annotations

import re
import shlex
from typing import List, Optional

from ..catalogue import finding
from ..configured import modprobe
from ..door.host import Host, Stat
from ..model import FAIL, OK, PROVED, WARN, Finding, Hint
from .kernel import PROXMOX_ESPS, NextKernel

_COPIED = re.compile(r"nvidia|nouveau|vfio")
"""Lines of modprobe.d about these decide who gets a GPU, and an initramfs holds a copy of the whole folder."""


def judge(host: Host, kernel: NextKernel) -> Optional[Finding]:
    """HT704; None where the boot entry names no file that this machine could look at."""
    if not kernel.initrd:
        return None
    subject, release = "initramfs of %s" % kernel.release, shlex.quote(kernel.release)
    # dracut names its files initramfs-RELEASE.img, initramfs-tools initrd.img-RELEASE.
    dracut = "/initramfs-" in kernel.initrd
    make = "dracut --force --kver %s" % release if dracut else "update-initramfs -u -k %s" % release
    stat = _stat(host, kernel.initrd)
    if stat is None or not stat.size:
        return finding(
            "HT704",
            FAIL,
            subject,
            "%s %s: the next boot stops early" % (kernel.initrd, "is not there" if stat is None else "is empty"),
            have="absent",
            want=kernel.initrd,
            proof=PROVED,
            evidence=(kernel.how,),
            hint=Hint(make.replace(" -u ", " -c "), "host", "nothing is restarted", "apply"),
        )
    newer = _newer(host, stat.mtime)
    if newer:
        return finding(
            "HT704",
            WARN,
            subject,
            "%s changed after it was made: the next boot still follows the old text" % newer[0],
            have="older",
            want="made after %s" % newer[0],
            proof=PROVED,
            evidence=tuple(newer[:3]),
            hint=Hint(make, "host", "nothing is restarted", "apply"),
        )
    copied = ("the copy in the boot partition was not looked at; `proxmox-boot-tool refresh` renews it",)
    return finding(
        "HT704",
        OK,
        subject,
        "%s is newer than every line about GPUs in modprobe.d" % kernel.initrd,
        evidence=copied if _stat(host, PROXMOX_ESPS) else (),
    )


def _newer(host: Host, made: float) -> List[str]:
    """Files of /etc/modprobe.d about GPUs that are younger. A package's own files come with its own trigger."""
    found = sorted(
        {
            line.path
            for line in modprobe.lines(host)
            if line.path.startswith("/etc/") and _COPIED.search(" ".join(line.words))
        }
    )
    return [path for path in found if (_stat(host, path) or Stat("file")).mtime > made]


def _stat(host: Host, path: str) -> Optional[Stat]:
    try:
        return host.lstat(path)
    except FileNotFoundError:
        return None
