# SPDX-License-Identifier: Apache-2.0
"""Machines on paper for topologies, from a few lines each: what sysfs would show, down to the symbolic links.

A tree is {root bus: [port or endpoint]}, a port is (bdf, [what hangs below it]); what hangs below is an endpoint or the ports of
a switch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEVICES = "/sys/bus/pci/devices"
ABSENT = {"errno": "ENOENT"}
MODEL = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
CLASSES = {"gpu": "0x030200", "nic": "0x020000", "nvme": "0x010802"}
VENDORS = {"gpu": "0x10de", "nic": "0x15b3", "nvme": "0x144d"}
DRIVERS = {"gpu": "nvidia", "nic": "mlx5_core", "nvme": "nvme"}


@dataclass(frozen=True)
class End:
    """An endpoint. width and speed are of the link now, can_* of the device itself."""

    kind: str
    bdf: str
    node: int
    width: int = 16
    speed: float = 32
    can_width: int = 16
    can_speed: float = 32
    name: str = ""
    driver: str | None = None
    group: str = ""


@dataclass(frozen=True)
class Port:
    """A root port, or a switch's port. acs: the ACS Control register, None: no such capability, -1: only 64 bytes are shown."""

    bdf: str
    below: Sequence[End | Port]
    width: int = 16
    speed: float = 32
    acs: int | None = 0


def config(acs: int | None) -> dict[str, str]:
    """Config space of a bridge: 4096 bytes with one extended capability, or the 64 that anybody may read."""
    data = bytearray(4096)
    struct.pack_into("<HH", data, 0, 0x1022, 0x14AB)
    if acs is not None:
        struct.pack_into("<IHH", data, 0x100, 0x1000D if acs >= 0 else 0, 0x1F, max(acs, 0))
    return {"hex": bytes(data[:64] if acs == -1 else data).hex()}


def machine(
    roots: Mapping[str, Sequence[Port | End]], nodes: Sequence[tuple[int, str, int]] = ((0, "0-31", 0), (1, "32-63", 1)),
    minors: bool = True, iommu: str = "",
) -> dict[str, Any]:  # fmt: skip
    """A view of a recording. nodes: (id, CPUs, socket)."""
    files: dict[str, Any] = {}
    dirs: dict[str, Any] = {"/sys/devices/system/node": ["node%d" % n for n, _, _ in nodes], DEVICES: []}
    links: dict[str, Any] = {}
    for number, cpus, socket in nodes:
        base = "/sys/devices/system/node/node%d" % number
        files[base + "/cpulist"] = cpus + "\n"
        files[base + "/meminfo"] = "Node %d MemTotal:       536870912 kB\n" % number
        files[base + "/distance"] = " ".join("10" if n == number else "32" for n, _, _ in nodes) + "\n"
        files["/sys/devices/system/cpu/cpu%s/topology/physical_package_id" % cpus.split("-")[0]] = "%d\n" % socket
    for root, ports in roots.items():
        for one in ports:
            _hang(one, "../../../devices/" + root, files, dirs, links, iommu)
    gpus = sorted(
        path.split("/")[-2] for path, text in files.items() if path.endswith("/vendor") and text == "0x10de\n"
    )
    folder = "/proc/driver/nvidia/gpus"
    dirs[folder] = gpus if minors else ABSENT
    for minor, bdf in enumerate(gpus):
        files["%s/%s/information" % (folder, bdf)] = "Model: \t\t %s\nDevice Minor: \t %d\n" % (MODEL, minor)
    if iommu:
        files.update({"/sys/kernel/iommu_groups/%s/type" % bdf: iommu + "\n" for bdf in gpus})
    return {"uname": "pve1 6.14.11-4-pve x86_64", "files": files, "dirs": dirs, "links": links}


def _hang(one: Port | End, above: str, files: Any, dirs: Any, links: Any, iommu: str) -> None:
    if isinstance(one, Port):
        _port(one, above, files, dirs, links, iommu)
    else:
        _end(one, above, files, dirs, links, iommu)


def _port(port: Port, above: str, files: Any, dirs: Any, links: Any, iommu: str) -> None:
    base = "%s/%s" % (DEVICES, port.bdf)
    dirs[DEVICES].append(port.bdf)
    links[base] = "%s/%s" % (above, port.bdf)
    files[base + "/class"] = "0x060400\n"
    files[base + "/config"] = config(port.acs)
    _link(base, port.width, port.speed, port.width, port.speed, files)
    for one in port.below:
        _hang(one, links[base], files, dirs, links, iommu)


def _end(end: End, above: str, files: Any, dirs: Any, links: Any, iommu: str) -> None:
    base = "%s/%s" % (DEVICES, end.bdf)
    dirs[DEVICES].append(end.bdf)
    driver = DRIVERS[end.kind] if end.driver is None else end.driver
    links[base] = "%s/%s" % (above, end.bdf)
    links[base + "/driver"] = "../../../bus/pci/drivers/" + driver if driver else ABSENT
    links[base + "/physfn"] = ABSENT
    links[base + "/iommu_group"] = "../../kernel/iommu_groups/" + end.bdf if iommu else ABSENT
    files[base + "/class"] = CLASSES[end.kind] + "\n"
    files[base + "/vendor"] = VENDORS[end.kind] + "\n"
    files[base + "/numa_node"] = "%d\n" % end.node
    _link(base, end.width, end.speed, end.can_width, end.can_speed, files)
    if end.kind == "nvme":
        dirs[base + "/nvme"] = [end.name]
    if end.kind == "nic":
        dirs[base + "/infiniband"], dirs[base + "/net"] = [end.name], ["eth0"]


def _link(base: str, width: int, speed: float, can_width: int, can_speed: float, files: Any) -> None:
    files[base + "/current_link_width"] = "%d\n" % width
    files[base + "/current_link_speed"] = "%.1f GT/s PCIe\n" % speed
    files[base + "/max_link_width"] = "%d\n" % can_width
    files[base + "/max_link_speed"] = "%.1f GT/s PCIe\n" % can_speed


def founding(idle: bool = True) -> dict[str, Any]:
    """Two sockets, eight GPUs each below a root port of its own, one of them on half its lanes; a NIC and two NVMe drives."""
    speed = 2.5 if idle else 32
    roots: dict[str, list[Port]] = {}
    for number in range(8):
        bus = number + 1
        gpu = End("gpu", "0000:%d1:00.0" % bus, number // 4, 8 if number == 5 else 16, speed)
        roots["pci0000:%d0" % bus] = [Port("0000:%d0:01.0" % bus, [gpu])]
    roots["pci0000:00"] = [
        Port("0000:00:01.1", [End("nvme", "0000:01:00.0", 0, 4, 32, 4, 32, "nvme0")], 4),
        Port("0000:00:01.2", [End("nvme", "0000:02:00.0", 0, 4, 16, 4, 16, "nvme1")], 4),
    ]
    roots["pci0000:c0"] = [Port("0000:c0:03.1", [End("nic", "0000:c1:00.0", 1, 16, 16, 16, 16, "mlx5_0")])]
    return machine(roots, iommu="identity")


def switched(acs: int = 0x1D) -> dict[str, Any]:
    """Two sockets, below each a switch with four GPUs and a NIC; ACS redirects in the first switch."""
    roots: dict[str, list[Port]] = {}
    for node, bus in ((0, 0x10), (1, 0x80)):
        ends: list[End] = [End("gpu", "0000:%02x:00.0" % (bus + 3 + n), node) for n in range(4)]
        ends.append(End("nic", "0000:%02x:00.0" % (bus + 7), node, 16, 32, 16, 32, "mlx5_%d" % node))
        ports = [
            Port("0000:%02x:%02x.0" % (bus + 2, n), [end], acs=acs if node == 0 else 0) for n, end in enumerate(ends)
        ]
        roots["pci0000:%02x" % bus] = [Port("0000:%02x:01.1" % bus, [Port("0000:%02x:00.0" % (bus + 1), ports)])]
    return machine(roots, iommu="DMA-FQ")


def small() -> dict[str, Any]:
    """One node, no driver, no root: a desktop with two GPUs, of which the firmware tells no node."""
    ports = [
        Port("0000:00:01.%d" % n, [End("gpu", "0000:0%d:00.0" % (n + 1), -1, driver="")], acs=-1) for n in range(2)
    ]
    return machine({"pci0000:00": ports}, ((0, "0-15", 0),), minors=False)
