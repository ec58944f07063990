# SPDX-License-Identifier: Apache-2.0
"""What the lab needs of the machine it runs on. Each refusal is one sentence with the way out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab import LabError

TO_RUN = ("qemu-system-x86_64", "qemu-img", "ssh")
TO_BUILD = (*TO_RUN, "mmdebstrap", "mke2fs", "modprobe", "ssh-keygen", "strip", "systemctl", "unshare")
GIB = 1 << 30
BUILD_BYTES = 6 * GIB
"""The roots take 1.2 GB, a build in progress 2.5, the image 0.8, its snapshot 0.3, each guest 0.3."""
RUN_BYTES = 2 * GIB


def to_run(folder: Path) -> None:
    """Whether a guest can run with its disk below `folder`; LabError if not."""
    _programs(TO_RUN)
    _room(folder, RUN_BYTES)


def to_build(folder: Path) -> None:
    """Whether an image can be built below `folder`; LabError if not."""
    if os.getuid() != 0:
        raise LabError(
            "building the lab's image needs root (it mounts and uses chroot): run the same command with sudo"
        )
    _programs(TO_BUILD)
    _room(folder, BUILD_BYTES)


def _programs(names: tuple[str, ...]) -> None:
    absent = [name for name in names if shutil.which(name) is None]
    if absent:
        raise LabError("not installed here: %s; 'sudo scripts/setup' installs them" % ", ".join(absent))


def _room(folder: Path, wanted: int) -> None:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < wanted:
        raise LabError(
            "%s has %.1f GB free and the lab needs %.1f: make room, or set HOSTTUNE_CACHE to a folder on another disk"
            % (there, free / GIB, wanted / GIB)
        )
