# SPDX-License-Identifier: Apache-2.0
"""PCI as sysfs shows it: NVIDIA functions, their drivers, the ports above them, and which belong to a virtual machine.

Their registers are in express.py, their error counters in errors.py.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import Dict, List, Mapping

from ..door.host import Host, list_or_empty, read_or_none

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"
CLASS_VGA, CLASS_3D = "0x0300", "0x0302"
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")


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
            continue  # a virtual function: its control registers are reserved
        node = (read_or_none(host, base + "numa_node") or "-1").strip()
        found.append(
            Gpu(
                bdf,
                driver(host, bdf),
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


def driver(host: Host, bdf: str) -> str:
    """The driver that is bound to a function, "" for none."""
    return _link(host, "%s/%s/driver" % (DEVICES, bdf)).rpartition("/")[2]


def iommu_group(host: Host, bdf: str) -> str:
    """The number of a function's IOMMU group, "" where no IOMMU stands between it and memory."""
    return _link(host, "%s/%s/iommu_group" % (DEVICES, bdf)).rpartition("/")[2]


def ports_above(host: Host, bdf: str) -> List[str]:
    """The ports on the way from a function up to its root port, nearest first: as its place in /sys/devices tells.

    Empty on a root bus: a virtual machine's GPU often hangs there, without any link that the machine could see.
    """
    parts = _link(host, "%s/%s" % (DEVICES, bdf)).split("/")
    return [part for part in reversed(parts[:-1]) if _BDF.match(part)]


def bus_policy(host: Host) -> str:
    """The kernel's policy for MaxPayload: default, tune_off, safe, perf or peer2peer. The last one on its command line
    counts, over the one that it was built with (drivers/pci/pci.c, pci_setup)."""
    named = re.findall(r"pcie_bus_(\w+)", read_or_none(host, "/proc/cmdline") or "")
    if named:
        return str(named[-1])
    built = read_or_none(host, "/boot/config-" + host.uname()[1]) or ""
    return "perf" if "CONFIG_PCIE_BUS_PERFORMANCE=y" in built else "default"


def owner(gpu: Gpu, assigned: Mapping[str, str]) -> str:
    """Why a GPU is not this host's to touch, "" if it is. `assigned`: vm_assigned()."""
    if gpu.driver == "vfio-pci":
        return "bound to vfio-pci: it belongs to a virtual machine"
    place = assigned.get(device_of(gpu.bdf))
    return "belongs to a virtual machine (%s)" % place if place else ""


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
