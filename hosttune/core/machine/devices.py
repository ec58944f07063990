# SPDX-License-Identifier: Apache-2.0
"""Device numbers: what /proc/devices says now, and which driver owns a number.

/proc/devices is the authority; a node in /dev can outlive the driver that made it. The kernel hands out dynamic
character majors from 254 down to 234, then from 511 down to 384 (fs/char_dev.c), in the order in which modules load:
that is why nvidia-uvm is 509 before a reboot and 511 after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Tuple

UVM, CAPS = "nvidia-uvm", "nvidia-caps"
NVIDIA_STATIC_MAJOR, DRM_MAJOR = 195, 226
_DYNAMIC = ((234, 254), (384, 511))
LARGEST_MAJOR = 511

_LINE = re.compile(r"\s*(\d{1,9})\s(.+?)\s*\Z")
_GPU_NODE = re.compile(r"/dev/nvidia(\d+)\Z")
# Devices whose character major is fixed (Documentation/admin-guide/devices.txt), by path below /dev: they can never
# be the owner of a dynamic number.
_STATIC_PATH = re.compile(
    r"/dev/(tty.*|serial(/.*)?|bus(/.*)?|net(/.*)?|fuse|kvm|vhost-net|vhost-vsock|uinput|input(/.*)?|snd(/.*)?|dri(/.*)?"
    r"|video\d+|dvb(/.*)?|null|zero|full|u?random|console|ptmx|pts(/.*)?|shm(/.*)?|mqueue(/.*)?|hugepages.*|loop.*|"
    r"mapper(/.*)?|disk(/.*)?|zvol(/.*)?|log|fb\d+|nvram|uhid|hwrng|autofs|cuse|ppp|kmsg|rfkill|i2c-\d+|sg\d+|vfio/vfio|"
    r"btrfs-control|(sd|vd|sr|nbd|md|dm-|mmcblk).*|nvme\d+n\d+.*)\Z")


@dataclass(frozen=True)
class Node:
    """A file in /dev: `type` is char, block, dir or file; numbers are -1 where there are none."""

    type: str
    major: int = -1
    minor: int = -1
    mode: int = 0o666


@dataclass(frozen=True)
class DeviceTable:
    """What is known of a host's devices. `nodes` is None when /dev was not looked at (only /proc/devices was given);
    otherwise a path that is not in it is not there. `pve_container` is the version of that package, None without it."""

    majors: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[int, Tuple[str, ...]] = field(default_factory=dict)
    nodes: Optional[Mapping[str, Node]] = None
    pve_container: Optional[Tuple[int, ...]] = None

    def owner(self, major: int) -> str:
        """The drivers that own a character major now, as a person reads them; "" if nobody does."""
        return ", ".join(self.names.get(major, ()))

    def major(self, driver: str) -> Optional[int]:
        """A driver's character major. The GPU nodes' driver is `nvidia`, `nvidia-frontend` in older releases; its
        number is fixed, so it is known without the module."""
        if driver == "nvidia":
            return self.majors.get("nvidia", self.majors.get("nvidia-frontend", NVIDIA_STATIC_MAJOR))
        return self.majors.get(driver)

    def gpus(self) -> Tuple[int, ...]:
        """The GPU numbers of all /dev/nvidiaN that are character devices."""
        found = [_GPU_NODE.match(path) for path, node in (self.nodes or {}).items() if node.type == "char"]
        return tuple(sorted(int(match.group(1)) for match in found if match))

    def below(self, directory: str) -> List[Tuple[str, Node]]:
        """Device nodes below a directory of /dev."""
        start = directory.rstrip("/") + "/"
        return sorted((path, node) for path, node in (self.nodes or {}).items()
                      if path.startswith(start) and node.type in ("char", "block"))


def parse_proc_devices(text: str) -> List[Tuple[int, str]]:
    """The lines of the "Character devices" part of /proc/devices, in order. One major may have several names."""
    out: List[Tuple[int, str]] = []
    inside = False
    for line in text.splitlines():
        if line.strip().endswith("devices:"):
            inside = line.startswith("Character")
            continue
        match = _LINE.match(line)
        if inside and match:
            out.append((int(match.group(1)), match.group(2)))
    return out


def device_table(proc_devices: str, nodes: Optional[Mapping[str, Node]] = None,
                 pve_container: Optional[Tuple[int, ...]] = None) -> DeviceTable:
    """A table from the text of /proc/devices and, where it was looked at, the nodes of /dev."""
    majors: Dict[str, int] = {}
    names: Dict[int, Tuple[str, ...]] = {}
    for major, name in parse_proc_devices(proc_devices):
        majors.setdefault(name, major)
        names[major] = names.get(major, ()) + (name,)
    return DeviceTable(majors, names, nodes, pve_container)


def is_dynamic(major: int) -> bool:
    """Whether the kernel may hand this character major to whichever driver asks next."""
    return any(low <= major <= high for low, high in _DYNAMIC)


def is_gpu_driver(name: str) -> bool:
    """nvidia, nvidiactl, nvidia-uvm, nvidia-caps ... and drm, whose nodes a GPU container may hold too."""
    return name.startswith("nvidia") or name == "drm"


def is_nvidia_path(path: str) -> bool:
    """Whether a path names one of the NVIDIA driver's nodes or their folders."""
    return path.startswith("/dev/nvidia")


def has_static_major(path: str) -> bool:
    """Whether devices at this path have fixed numbers, so that they cannot own a dynamic one."""
    return bool(_STATIC_PATH.match(path))


def driver_of(path: str) -> str:
    """The name in /proc/devices of the driver behind an NVIDIA node; "" for paths that are none."""
    name = path[len("/dev/"):] if path.startswith("/dev/") else ""
    if name in ("nvidia-uvm", "nvidia-uvm-tools"):
        return UVM
    if name.startswith("nvidia-caps/nvidia-cap"):
        return CAPS
    if name.startswith("nvidia-caps-imex-channels/"):
        return "nvidia-caps-imex-channels"
    return "nvidia" if re.match(r"nvidia(\d+|ctl|-modeset)\Z", name) else ""


def expected_minor(path: str) -> Optional[int]:
    """The fixed minor of an NVIDIA node: nvidiaN has N, nvidiactl 255, nvidia-modeset 254, uvm 0, uvm-tools 1."""
    match = _GPU_NODE.match(path)
    if match:
        return int(match.group(1))
    return {"/dev/nvidiactl": 255, "/dev/nvidia-modeset": 254, "/dev/nvidia-uvm": 0, "/dev/nvidia-uvm-tools": 1}.get(path)
