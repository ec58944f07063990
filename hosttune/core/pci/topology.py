# SPDX-License-Identifier: Apache-2.0
"""The machine as sysfs shows it: sockets, NUMA nodes, the PCI way down to each GPU, NIC and NVMe drive, and what may stand on it.

Files alone are read: no command, no NVML, so that a recording answers as a machine does. What could not be read stands in
`unknown` and is drawn as unknown: a GPU whose node the firmware does not tell is on no node, never on node 0.

Sources: Documentation/ABI/testing/sysfs-bus-pci (numa_node, *_link_*), sysfs-kernel-iommu_groups. What a link can is what its
weaker end can.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..door.host import Host, Unrecorded, errname
from ..model import natural
from . import bus, express
from .link import End, end, weaker

GPU, NIC, NVME = "gpu", "nic", "nvme"
ROOT_PORT, UPSTREAM, DOWNSTREAM = "root port", "switch", "switch port"
_KINDS = (("0x0200", NIC), ("0x0207", NIC), ("0x0108", NVME))
_ABSENT = ("ENOENT", "ENOTDIR", "EINVAL", "ENODEV")
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
NODES = "/sys/devices/system/node"
REDIRECTS, NO_REDIRECT, NO_ACS, UNKNOWN, NOT_ASKED = "redirects", "does not redirect", "no ACS", "unknown", "not asked"


@dataclass(frozen=True)
class Bridge:
    """A root port or a port of a switch. acs: one of the five words above; only what is on the way of a GPU is asked."""

    bdf: str
    kind: str
    link: End
    acs: str = UNKNOWN


@dataclass(frozen=True)
class Device:
    """A GPU, NIC or NVMe drive. node: None if nobody tells. root: its root bus ("pci0000:10"), way: bridges from there down.

    number: a GPU's minor (/dev/nvidiaN), or where the driver is absent its place in PCI order. can: what its link can, both
    ends considered. name: nvme0, mlx5_0 or a GPU's model. iommu: its IOMMU group, "" for none.
    """

    bdf: str
    kind: str
    node: Optional[int]
    root: str = ""
    way: Tuple[str, ...] = ()
    link: End = End()
    can: End = End()
    driver: str = ""
    name: str = ""
    number: Optional[int] = None
    iommu: str = ""

    @property
    def narrow(self) -> bool:
        """Fewer lanes than both ends can do. Lanes do not change at idle, so this is a fault; speed does, and is none."""
        return 0 < self.link.width < self.can.max_width


@dataclass(frozen=True)
class Node:
    """A NUMA node: its CPUs as a list ("0-31"), memory in bytes, socket (None: not told), distances to every node by its id."""

    id: int
    cpus: str = ""
    memory: int = 0
    socket: Optional[int] = None
    distances: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Topology:
    """The whole. devices are sorted: GPUs by number, then the rest by address. numbered_by: "minor" or "pci order".

    iommu: off, passthrough, translating, mixed or unknown. unknown: (path, why) of what could not be read.
    """

    machine: str
    nodes: Tuple[Node, ...] = ()
    bridges: Mapping[str, Bridge] = field(default_factory=dict)
    devices: Tuple[Device, ...] = ()
    numbered_by: str = "minor"
    iommu: str = "unknown"
    unknown: Tuple[Tuple[str, str], ...] = ()

    @property
    def gpus(self) -> Tuple[Device, ...]:
        """By number."""
        return tuple(d for d in self.devices if d.kind == GPU)

    def upstream_of(self, bdf: str) -> Tuple[Bridge, ...]:
        """The bridges on the way of a device, from the root port down."""
        device = next(d for d in self.devices if d.bdf == bdf)
        return tuple(self.bridges[b] for b in device.way if b in self.bridges)


class _Asker:
    """Reads that may fail: None, and the reason kept."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.unknown: Dict[str, str] = {}

    def _kept(self, path: str, e: Exception) -> None:
        why = errname(e) if isinstance(e, OSError) else "not recorded"
        if why not in _ABSENT:
            self.unknown[path] = why

    def text(self, path: str) -> str:
        try:
            return self.host.read(path).strip()
        except (OSError, Unrecorded) as e:
            self._kept(path, e)
            return ""

    def names(self, path: str) -> List[str]:
        try:
            return self.host.list(path)
        except (OSError, Unrecorded) as e:
            self._kept(path, e)
            return []

    def link(self, path: str) -> str:
        try:
            return self.host.readlink(path)
        except (OSError, Unrecorded) as e:
            self._kept(path, e)
            return ""

    def acs(self, bdf: str) -> str:
        """The word for a port's Access Control Services. Without root its config space ends before they can be seen."""
        try:
            found = express.acs(express.config(self.host, bdf, 4096))
        except (OSError, Unrecorded) as e:
            self._kept("%s/%s/config" % (bus.DEVICES, bdf), e)
            return UNKNOWN
        except express.Unreadable:
            return UNKNOWN
        return NO_ACS if found is None else NO_REDIRECT if found.redirects == "off" else REDIRECTS


def see(host: Host) -> Topology:
    """What this machine, or a recording, tells. Asks only; raises nothing for what cannot be read."""
    ask = _Asker(host)
    nodes = _nodes(ask)
    functions = [found for found in (_function(ask, bdf) for bdf in ask.names(bus.DEVICES)) if found]
    models, minors = _driver(ask)
    gpus = [bdf for bdf, kind in functions if kind == GPU]
    by_minor = bool(gpus) and all(bdf in minors for bdf in gpus)
    numbers = minors if by_minor else {bdf: n for n, bdf in enumerate(gpus)}
    bridges: Dict[str, Bridge] = {}
    devices = [_device(ask, bdf, kind, nodes, bridges, numbers, models) for bdf, kind in functions]
    devices.sort(key=lambda d: (d.kind != GPU, -1 if d.number is None else d.number, natural(d.bdf)))
    offline = {d.node for d in devices if d.node is not None} - {node.id for node in nodes}
    nodes += tuple(Node(number) for number in sorted(offline))  # without CPU and memory the kernel shows no such node
    return Topology(
        host.uname()[0],
        nodes,
        bridges,
        tuple(devices),
        "minor" if by_minor else "pci order",
        _iommu(ask, [d.iommu for d in devices if d.kind == GPU]),
        tuple(ask.unknown.items()),
    )


def _nodes(ask: _Asker) -> Tuple[Node, ...]:
    ids = sorted(int(name[len("node") :]) for name in ask.names(NODES) if re.fullmatch(r"node\d+", name))
    return tuple(_node(ask, number, ids) for number in ids)


def _node(ask: _Asker, number: int, ids: Sequence[int]) -> Node:
    base = "%s/node%d" % (NODES, number)
    cpus = ask.text(base + "/cpulist")
    memory = re.search(r"MemTotal:\s*(\d+) kB", ask.text(base + "/meminfo"))
    first = re.match(r"\d+", cpus)  # a node of memory alone has no CPU, and so no socket of its own
    package = ask.text("/sys/devices/system/cpu/cpu%s/topology/physical_package_id" % first.group()) if first else ""
    distances = dict(zip(ids, (int(word) for word in ask.text(base + "/distance").split() if word.isdigit())))
    socket = int(package) if package.isdigit() else None  # the kernel says -1 where the firmware does not tell
    return Node(number, cpus, int(memory.group(1)) << 10 if memory else 0, socket, distances)


def _function(ask: _Asker, bdf: str) -> Optional[Tuple[str, str]]:
    base = "%s/%s/" % (bus.DEVICES, bdf)
    code = ask.text(base + "class")
    kind = next((kind for start, kind in _KINDS if code.startswith(start)), "")
    if code.startswith((bus.CLASS_VGA, bus.CLASS_3D)) and ask.text(base + "vendor") == bus.NVIDIA:
        kind = GPU
    if not kind or ask.link(base + "physfn"):
        return None  # a virtual function has no link of its own
    return bdf, kind


def _device(ask: _Asker, bdf: str, kind: str, nodes: Sequence[Node], bridges: Dict[str, Bridge],
            numbers: Mapping[str, int], models: Mapping[str, str]) -> Device:  # fmt: skip
    base = "%s/%s/" % (bus.DEVICES, bdf)
    parts = ask.link(base[:-1]).split("/")
    root = next((part for part in parts if _ROOT.fullmatch(part)), "")
    way = tuple(part for part in parts[:-1] if _BDF.fullmatch(part))
    for depth, bridge in enumerate(way):
        if bridge not in bridges:
            bridges[bridge] = _bridge(ask, bridge, depth, kind == GPU)
        elif kind == GPU and bridges[bridge].acs == NOT_ASKED:
            bridges[bridge] = _bridge(ask, bridge, depth, True)
    link = end(ask.text, bdf)
    numa = ask.text(base + "numa_node")
    node = int(numa) if numa.isdigit() else nodes[0].id if len(nodes) == 1 else None
    above = bridges[way[-1]].link if way else End()
    return Device(
        bdf, kind, node, root, way, link, _can(link, above), ask.link(base + "driver").rpartition("/")[2],
        models.get(bdf, "") if kind == GPU else _name(ask, base, kind), numbers.get(bdf),
        ask.link(base + "iommu_group").rpartition("/")[2],
    )  # fmt: skip


def _name(ask: _Asker, base: str, kind: str) -> str:
    """nvme0; mlx5_0 and its network device."""
    folders = ("nvme",) if kind == NVME else ("infiniband", "net")
    return " ".join(name for folder in folders for name in ask.names(base + folder))


def _bridge(ask: _Asker, bdf: str, depth: int, acs: bool) -> Bridge:
    """By its place: the first is the root port, then a switch's upstream port and its downstream port in turn."""
    kind = ROOT_PORT if depth == 0 else UPSTREAM if depth % 2 else DOWNSTREAM
    return Bridge(bdf, kind, end(ask.text, bdf), ask.acs(bdf) if acs else NOT_ASKED)


def _can(link: End, above: End) -> End:
    """What a link can, from what its two ends can."""
    return End(link.width, link.speed, int(weaker(link.max_width, above.max_width)), weaker(link.max_speed, above.max_speed))


def _driver(ask: _Asker) -> Tuple[Dict[str, str], Dict[str, int]]:
    """{bdf: model} and {bdf: minor} as the driver's own /proc tells them; empty where it is not loaded."""
    models, minors = {}, {}
    folder = "/proc/driver/nvidia/gpus"
    for bdf in ask.names(folder):
        text = ask.text("%s/%s/information" % (folder, bdf))
        model = re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE)
        minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
        if model:
            models[bdf] = model.group(1)
        if minor:
            minors[bdf] = int(minor.group(1))
    return models, minors


def _iommu(ask: _Asker, groups: Sequence[str]) -> str:
    if not groups or "/sys/class/iommu" in ask.unknown:
        return "unknown"
    if not any(groups):
        return "off"
    kinds = {ask.text("/sys/kernel/iommu_groups/%s/type" % group) for group in groups if group}
    if kinds == {"identity"}:
        return "passthrough"
    return "unknown" if "" in kinds else "mixed" if "identity" in kinds else "translating"
