# SPDX-License-Identifier: Apache-2.0
"""NVIDIA device nodes in the namespace's private /dev.

No driver owns these majors on a test machine, and that is what makes them an oracle (measured): open(2) of a node says
EPERM when a device cgroup program refuses it, EACCES when the mode or a nodev mount does, and ENXIO when everything allowed
it and only the driver is missing. So here ENXIO means "the node works".
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

NVIDIA_MAJOR = 195
CONTROL_MINOR = 255


@dataclass(frozen=True)
class Number:
    """Major and minor of a character device."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


class GpuNodes:
    """Makes and removes nodes; `clear()` takes every /dev/nvidia* away again."""

    def __init__(self, dev: Path = Path("/dev")) -> None:
        self.dev = dev

    def make(self, name: str, major: int, minor: int, mode: int = 0o666, uid: int = 0, gid: int = 0) -> Path:
        """A character device, in place of whatever has that name: a new inode each time, as udev and nvidia-modprobe do."""
        path = self.dev / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))
        os.chown(path, uid, gid)
        os.chmod(path, mode)
        return path

    def make_all(self, gpus: int = 1, uvm: int = 511, mode: int = 0o666) -> list[Path]:
        """The nodes of a healthy host: nvidiactl, one nvidiaN for each GPU, nvidia-uvm and nvidia-uvm-tools of major `uvm`."""
        cards = [self.make(f"nvidia{minor}", NVIDIA_MAJOR, minor, mode) for minor in range(gpus)]
        control = self.make("nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR, mode)
        return [control, *cards, self.make("nvidia-uvm", uvm, 0, mode), self.make("nvidia-uvm-tools", uvm, 1, mode)]

    def placeholder(self, name: str) -> Path:
        """An empty regular file in a node's place: what `create=file` in a bind entry leaves when the host has no node."""
        path = self.dev / name
        path.unlink(missing_ok=True)
        path.touch(mode=0o666)
        return path

    def remove(self, name: str) -> None:
        (self.dev / name).unlink()

    def number(self, name: str) -> Number:
        """What the node's rdev says. Raises FileNotFoundError."""
        rdev = (self.dev / name).lstat().st_rdev
        return Number(os.major(rdev), os.minor(rdev))

    def clear(self) -> None:
        for path in self.dev.glob("nvidia*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def bind_entries(paths: list[Path], optional: bool = False) -> str:
    """LXC config lines that show these host nodes inside a container, in the form that Proxmox users write."""
    options = "bind,optional,create=file" if optional else "bind,create=file"
    return "".join(f"lxc.mount.entry = {path} {str(path).lstrip('/')} none {options}\n" for path in paths)
