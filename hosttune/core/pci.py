# SPDX-License-Identifier: Apache-2.0
"""PCI as sysfs shows it: NVIDIA functions, their drivers, and the PCI Express capability of their config space.

Offsets and masks: include/uapi/linux/pci_regs.h. The capability is found by walking the list, never by an absolute
offset: Device Control lies at 0x68, 0x80 or 0x48 depending on the GPU's generation.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from .host import Host, list_or_empty, read_or_none

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"
CLASS_VGA, CLASS_3D = "0x0300", "0x0302"
CAPABILITY_LIST = 0x34
CAP_ID_EXPRESS = 0x10
DEVICE_CONTROL = 0x08
MAX_READ_REQUEST = 0x7000
"""Bits 14:12 of Device Control. Bit 15 starts a function level reset on an endpoint: it must never be in the mask."""


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU function: its address, the driver bound to it ("" for none), its NUMA node (-1: unknown)."""

    bdf: str
    driver: str
    numa_node: int
    device: str = ""


def gpus(host: Host) -> List[Gpu]:
    """Every function of vendor 10de with a VGA or 3D class; audio and USB functions and virtual functions are not GPUs."""
    found = []
    for bdf in list_or_empty(host, DEVICES):
        base = "%s/%s/" % (DEVICES, bdf)
        if (read_or_none(host, base + "vendor") or "").strip() != NVIDIA:
            continue
        if not (read_or_none(host, base + "class") or "").startswith((CLASS_VGA, CLASS_3D)):
            continue
        if _link(host, base + "physfn"):
            continue  # a virtual function: MaxReadReq is reserved there
        node = (read_or_none(host, base + "numa_node") or "-1").strip()
        found.append(
            Gpu(
                bdf,
                _link(host, base + "driver").rpartition("/")[2],
                int(node),
                (read_or_none(host, base + "device") or "").strip(),
            )
        )
    return found


def _link(host: Host, path: str) -> str:
    try:
        return host.readlink(path)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):
            return ""
        raise


class ShortConfig(Exception):
    """Config space ends after 64 bytes: without root the kernel shows no more. Not "no such capability"."""


def express_capability(config: bytes) -> Optional[int]:
    """Offset of the PCI Express capability, None if the function has none. Raises ShortConfig for an unprivileged read."""
    if len(config) < 64:
        raise ShortConfig
    if not config[0x06] & 0x10:  # Status bit 4: there is a capability list
        return None
    at, seen = config[CAPABILITY_LIST] & 0xFC, set()
    while at and at not in seen:
        if at + DEVICE_CONTROL + 2 > len(config):
            raise ShortConfig
        seen.add(at)
        if config[at] == CAP_ID_EXPRESS:
            return at
        at = config[at + 1] & 0xFC
    return None


def max_read_request(config: bytes) -> Optional[int]:
    """MaxReadReq in bytes; None without a PCI Express capability; 0 for the two reserved codes."""
    at = express_capability(config)
    if at is None:
        return None
    control = int.from_bytes(config[at + DEVICE_CONTROL : at + DEVICE_CONTROL + 2], "little")
    code = (control & MAX_READ_REQUEST) >> 12
    return 128 << code if code < 6 else 0


def setpci_max_read_request(bdf: str, size: int) -> Tuple[str, ...]:
    """The masked 16-bit write. A 32-bit one would clear Device Status, whose error bits are cleared by writing 1."""
    return ("setpci", "-s", bdf, "CAP_EXP+8.w=%04x:%04x" % ((size // 128).bit_length() - 1 << 12, MAX_READ_REQUEST))


def vm_assigned(host: Host) -> Dict[str, str]:
    """GPUs that a virtual machine of this Proxmox VE node is given: {bdf without function: "file:line"}.

    Read from hostpciN lines of /etc/pve/qemu-server/*.conf (main section only) and, for `mapping=NAME`, from
    /etc/pve/mapping/pci.cfg. Short addresses mean domain 0000; ".0" or no function both mean the whole device.
    """
    found: Dict[str, str] = {}
    mapped = _mappings(host)
    folder = "/etc/pve/qemu-server"
    for name in list_or_empty(host, folder):
        if not name.endswith(".conf"):
            continue
        path = "%s/%s" % (folder, name)
        for number, line in enumerate((read_or_none(host, path) or "").splitlines(), 1):
            if line.startswith("["):
                break
            match = re.match(r"hostpci\d+:\s*(\S+)", line)
            if not match:
                continue
            first = match.group(1).split(",")[0]
            named = first[len("mapping=") :] if first.startswith("mapping=") else ""
            addresses = (
                mapped.get(named, [])
                if named
                else first[5:].split(";")
                if first.startswith("host=")
                else first.split(";")
            )
            for address in addresses:
                found[device_of(address)] = "%s:%d" % (path, number)
    return found


def _mappings(host: Host) -> Dict[str, List[str]]:
    """{mapping name: [addresses on any node]} of the cluster's resource mappings."""
    out: Dict[str, List[str]] = {}
    name = ""
    for line in (read_or_none(host, "/etc/pve/mapping/pci.cfg") or "").splitlines():
        if line and not line[0].isspace():
            name = line.strip()
        match = re.search(r"path=([0-9a-fA-F:.;]+)", line)
        if match and name:
            out.setdefault(name, []).extend(match.group(1).split(";"))
    return out


def device_of(address: str) -> str:
    """0000:c1:00 for "c1:00.0", "c1:00", "0000:c1:00.1"."""
    full = address if address.count(":") == 2 else "0000:" + address
    return full.split(".")[0].lower()
