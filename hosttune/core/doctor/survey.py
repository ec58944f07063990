# SPDX-License-Identifier: Apache-2.0
"""Everything that a doctor asks of one machine, asked once, in an order that leaves the evidence alone.

Files of /proc and /sys first, then every device node, then the driver's libraries: these may repair or remove nodes.
What could not be asked stands in `unknowns` with its reason; nothing is guessed here and nothing is judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

from ..door.host import ENV_PREFIXES, Host, Inquiry, Unrecorded, Who, errname, list_or_empty, read_or_none
from ..gpu import gpus as numbers
from ..lxc.facts import ContainerFacts, container_facts
from ..machine import mountinfo
from ..machine.container import inside
from ..machine.devices import NVIDIA_STATIC_MAJOR, UVM, device_table
from ..machine.engine_python import Torch
from ..machine.engine_python import look as ask_python
from ..machine.process import Process, process, unit
from ..model import Refused
from ..pci import bus
from . import surroundings
from .surroundings import Surroundings

CONTROL, UVM_NODE, UVM_TOOLS = "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
NODES, PYTHON, EYES = "device nodes and driver calls", "the engine's Python", "the process"
CALLS = (
    "dlopen:libcuda.so.1",
    "dlopen:libnvidia-ml.so.1",
    "nvmlInit",
    "nvmlDeviceCount",
    "cuInit",
    "cuDeviceGetCount",
    "cuInit@clean-env",
    "cuDeviceGetCount@clean-env",
)
"""NVML before CUDA: it never touches nvidia-uvm, and cuInit is what may hang."""

CAP_MKNOD = 27
UNKNOWN_MAKE = "a PID namespace of unknown make"

T = TypeVar("T")


@dataclass(frozen=True)
class Declared:
    """What the owner says of a machine. gpus: how many CUDA must count, None if nothing is said. uid: ask as this user.

    contexts: make a context on each GPU, launch a kernel, ask for memory, trace what fails. pid, service: look through the eyes
    of this process, or of this unit's. engine_python: an interpreter whose PyTorch is asked.
    container_ids: on a host, the containers to read configs of; outside: those of them whose nodes are looked at from the
    host, through the container's mounts and device cgroup, because nothing inside can be asked. No library is loaded then.
    """

    gpus: Optional[int] = None
    uid: Optional[int] = None
    contexts: bool = False
    container_ids: Tuple[str, ...] = ()
    outside: Tuple[str, ...] = ()
    timeout: float = 30
    pid: int = 0
    service: str = ""
    engine_python: str = ""


@dataclass(frozen=True)
class Node:
    """What a device node is, and what access(2) and open(2) of it said, before any driver library was loaded.

    errno: of lstat, "" if the node is there. access, open: "ok", an errno, "not-tried: why", "timeout" or "".
    nodev: the node lies on a nodev mount; None when the mount table is not known. after: what the libraries left.
    """

    path: str
    errno: str = ""
    type: str = ""
    rdev: str = ""
    mode: str = ""
    uid: int = 0
    gid: int = 0
    nlink: int = 1
    size: int = 0
    access: str = ""
    open: str = ""
    nodev: Optional[bool] = None
    after: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """One machine or container as it was found. Plain data: JSON-able by model.as_dict.

    kind           host, lxc, docker, podman, kubernetes, nspawn, container (of unknown make), unknown (could not be told);
                   the kernel's facts (majors, gpus, modules) are the same inside a container and outside
    userns         in a user namespace (an unprivileged container)
    majors         {driver name: character major}; None when /proc/devices could not be read
    owners         {major: driver names}
    gpus           NVIDIA functions on PCI; None when not known. minors: the GPU numbers the driver gives, by_bdf: to whom.
    module         version of the loaded nvidia module, "" when it is not loaded, None when not known
    calls          as Inquiry.calls; empty when no library was to be asked
    unknowns       (question, reason)
    containers     on a host: config facts by container id
    outside        on a host: nodes of containers that were looked at from the host, by container id
    around         kernel log, limits and services; empty while CUDA starts
    process        whose eyes were used; None: the doctor's own
    """

    key: str
    kind: str = "host"
    userns: bool = False
    uid: int = 0
    caps: int = 0
    majors: Optional[Mapping[str, int]] = None
    owners: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    gpus: Optional[Tuple[bus.Gpu, ...]] = None
    minors: Tuple[int, ...] = ()
    module: Optional[str] = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, Any] = field(default_factory=dict)
    protected: bool = True
    stuck: str = ""
    declared_gpus: Optional[int] = None
    vm_gpus: Mapping[str, str] = field(default_factory=dict)
    unknowns: Tuple[Tuple[str, str], ...] = ()
    containers: Mapping[str, ContainerFacts] = field(default_factory=dict)
    outside: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)
    by_bdf: Mapping[str, int] = field(default_factory=dict)
    around: Surroundings = Surroundings()
    process: Optional[Process] = None
    torch: Optional[Torch] = None

    def unknown(self, question: str) -> str:
        """Why a question has no answer, "" if it has one."""
        return next((reason for asked, reason in self.unknowns if asked == question), "")

    def owner(self, major: int) -> str:
        """The drivers that own a character major now, "" for nobody."""
        return ", ".join(self.owners.get(str(major), ()))

    def number_of(self, path: str) -> str:
        """The number that a GPU node must have now ("511:0"), "" while its driver has none."""
        name = path[len("/dev/") :]
        uvm = (self.majors or {}).get(UVM)
        if name in ("nvidia-uvm", "nvidia-uvm-tools"):
            return "" if uvm is None else "%d:%d" % (uvm, name.endswith("tools"))
        if not self.has_nvidia:
            return ""
        return "%d:%s" % (NVIDIA_STATIC_MAJOR, "255" if name == "nvidiactl" else name[len("nvidia") :])

    @property
    def has_nvidia(self) -> bool:
        """Whether a driver of the nvidia module owns major 195."""
        return any(name.startswith("nvidia") for name in self.owners.get(str(NVIDIA_STATIC_MAJOR), ()))


class _Asking:
    """Asks, and writes down what could not be answered."""

    def __init__(self) -> None:
        self.unknowns: List[Tuple[str, str]] = []

    def ask(self, question: str, how: Callable[[], T], otherwise: T, refuse: bool = False) -> T:
        """refuse: raise what is Refused, in place of noting it."""
        try:
            return how()
        except OSError as e:
            self.unknowns.append((question, "%s%s" % (errname(e), ": " + str(e.filename) if e.filename else "")))
        except Refused as e:
            if refuse:
                raise
            self.unknowns.append((question, "%s: %s" % (e.where, e.what)))
        except Unrecorded as e:
            self.unknowns.append((question, str(e)))
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as e:  # an answer of another shape
            self.unknowns.append((question, "not understood: %s" % e))
        return otherwise


def survey(host: Host, declared: Declared = Declared(), key: str = "host") -> Machine:
    """Ask one machine. Never raises for what the machine answers; changes nothing on it.

    From a container, the kernel's facts are the host's: /proc/devices, /sys/module and PCI are not namespaced.
    """
    asking = _Asking()
    ask = asking.ask
    who = ask("who", host.who, Who(0, 0, 0))
    seen = _process(host, declared, asking)
    uid = declared.uid if seen is None or not seen.pid or declared.uid is not None else seen.uid
    kind = ask("container", lambda: _kind(host), "unknown")
    devices = ask("character majors", lambda: host.read("/proc/devices"), None)
    table = None if devices is None else device_table(devices)
    gpus = ask("gpus on pci", lambda: tuple(bus.gpus(host)), None)
    module = ask("nvidia module", lambda: _module(host), None)
    none: Dict[str, int] = {}
    by_bdf = ask("gpu minors", lambda: numbers.minors(host), none)
    minors = tuple(sorted(by_bdf.values()))
    nothing: List[str] = []
    names = ask("names in /dev", lambda: list_or_empty(host, "/dev"), nothing)
    mounts = ask("mounts", lambda: host.read("/proc/self/mountinfo"), None)
    uid_map = ask("user namespace", lambda: read_or_none(host, "/proc/self/uid_map"), None)
    assigned: Dict[str, str] = {}
    if kind == "host":
        assigned = ask("gpus of virtual machines", lambda: bus.vm_assigned(host), assigned)
    containers = {ct: ask("container " + ct, partial(container_facts, host, ct), None) for ct in declared.container_ids}
    paths = node_paths(minors, names, host_view=kind == "host" or bool(declared.gpus))
    outside: Dict[str, Dict[str, Node]] = {}
    for ct in declared.outside:
        facts = containers.get(ct)
        if facts is not None and facts.pid:
            unseen: Dict[str, Node] = {}
            outside[ct] = ask("nodes of container " + ct, partial(_from_outside, host, facts.pid, minors), unseen)
    calls = CALLS + (tuple("cuCtxCreate@%d" % n for n in range(len(minors) or 1)) if declared.contexts else ())
    calls += ("cuLaunch@0", "nvmlMemory") if declared.contexts else ()
    shifted = bool(uid_map) and not _whole_range(uid_map or "")
    if declared.contexts and uid is None and who.caps >> CAP_MKNOD & 1 and not shifted:
        calls += ("allowlist",)
    if seen is None:
        asked = ask(NODES, lambda: host.inquire(paths, calls, uid=uid, timeout=declared.timeout), Inquiry({}, {}))
    else:
        asked = ask(NODES, lambda: _through(host, seen, paths, calls, uid, declared.timeout), Inquiry({}, {}))
    if not any(question == NODES for question, _ in asking.unknowns):
        asking.unknowns += [(path, "not recorded") for path in paths if path not in asked.nodes]
    nodes = {path: node_of(path, facts, mounts) for path, facts in asked.nodes.items()}
    loaded = table is None or table.majors.get("nvidia", table.majors.get("nvidia-frontend")) is not None
    around = (
        surroundings.look(
            host,
            asked.calls,
            loaded,
            _sick(nodes, gpus, declared.gpus, asked.calls),
            declared.contexts,
            all(node.type == "char" and node.open == "ok" for path, node in nodes.items() if path != UVM_TOOLS),
        )
        if asked.calls
        else None
    )
    python = declared.engine_python
    torch = ask(PYTHON, lambda: ask_python(host, python), None) if python else None
    return Machine(
        key,
        kind,
        shifted,
        who.uid if uid is None else uid,
        who.caps if uid in (None, who.uid) else 0,
        None if table is None else dict(table.majors),
        {} if table is None else {str(k): v for k, v in table.names.items()},
        gpus,
        minors,
        module,
        nodes,
        {k: v for k, v in (who.env if seen is None else seen.env).items() if k.startswith(ENV_PREFIXES)},
        asked.calls,
        asked.protected,
        asked.stuck,
        declared.gpus,
        assigned,
        tuple(asking.unknowns),
        {k: v for k, v in containers.items() if v is not None},
        {k: v for k, v in outside.items() if v},
        by_bdf,
        around or Surroundings(),
        seen,
        torch,
    )


def _process(host: Host, declared: Declared, asking: _Asking) -> Optional[Process]:
    """Refused, by name, where there is no such process: nobody else's eyes will do."""
    if declared.service:
        return asking.ask(EYES, lambda: unit(host, declared.service), None, refuse=True)
    return asking.ask(EYES, lambda: process(host, declared.pid), None, refuse=True) if declared.pid else None


def _through(
    host: Host, seen: Process, paths: Sequence[str], calls: Sequence[str], uid: Optional[int], timeout: float
) -> Inquiry:
    """As that process would find the nodes; the libraries only where none of them is refused, since they are asked from here,
    outside of its sandbox. A unit that does not run is asked as root, and judged by its settings."""
    if not seen.pid:
        return host.inquire(paths, (), timeout=timeout)
    nodes = host.inquire(paths, (), uid=uid, timeout=timeout, pid=seen.pid).nodes
    if seen.own_view or any(node.get("access") != "ok" for node in nodes.values()):
        return Inquiry(nodes, {})
    told = host.inquire((), calls, uid=uid, env=dict(seen.env, PATH="/usr/sbin:/usr/bin:/sbin:/bin"), timeout=timeout)
    return Inquiry(nodes, told.calls, told.protected, told.stuck)


def _sick(
    nodes: Mapping[str, Node], gpus: Optional[Sequence[bus.Gpu]], want: Optional[int], calls: Mapping[str, Any]
) -> bool:
    """Whether a GPU is without driver, its node does not open, or CUDA counts too few."""
    count = calls.get("cuDeviceGetCount")
    bad = any(node.type == "char" and node.access == "ok" and node.open not in ("ok", "") for node in nodes.values())
    return bad or any(not gpu.driver for gpu in gpus or ()) or want is not None and count is not None and count != want


def _from_outside(host: Host, pid: int, minors: Sequence[int]) -> Dict[str, Node]:
    """A container's nodes as its root would find them. In a user namespace that root is an ordinary user of the host:
    asked as such, because the host's own root passes any mode."""
    first = host.read("/proc/%d/uid_map" % pid).split()
    shifted = int(first[1]) if first and not _whole_range(" ".join(first)) else None
    mounts = host.read("/proc/%d/mountinfo" % pid)
    got = host.inquire(node_paths(minors, (), host_view=True), (), uid=shifted, pid=pid)
    return {path: node_of(path, facts, mounts) for path, facts in got.nodes.items()}


def _kind(host: Host) -> str:
    mark = inside(host)
    if mark == "systemd-nspawn":
        return "nspawn"
    if mark in ("docker", "podman", UNKNOWN_MAKE) and list_or_empty(host, "/var/run/secrets/kubernetes.io"):
        return "kubernetes"
    return "container" if mark == UNKNOWN_MAKE else mark or "host"


def _module(host: Host) -> str:
    """Version of the loaded nvidia module, "" when it is not loaded: what the driver says of itself, which is what its libraries
    compare; where a container hides that, what the module was built as."""
    text = read_or_none(host, "/proc/driver/nvidia/version")
    if text is not None:
        found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
        if not found:
            raise ValueError("/proc/driver/nvidia/version holds no version")
        return found.group(1)
    version = read_or_none(host, "/sys/module/nvidia/version")
    if version is not None and not re.match(r"[\w.+-]+\s*\Z", version):
        raise ValueError("/sys/module/nvidia/version holds no version")
    return (version or "").strip()


def node_paths(minors: Sequence[int], names: Sequence[str], host_view: bool) -> Tuple[str, ...]:
    """The nodes to look at. A container is meant to have the GPUs that are there; on a host every GPU has its node.

    A container without any /dev/nvidiaN is asked for all of them, so that their absence shows.
    """
    present = {int(n[len("nvidia") :]) for n in names if re.match(r"nvidia\d{1,4}\Z", n)}
    wanted = present | set(minors) if host_view or not present else present
    gpus = tuple("/dev/nvidia%d" % minor for minor in sorted(wanted or {0}))
    return (CONTROL,) + gpus + (UVM_NODE, UVM_TOOLS)


def node_of(path: str, facts: Mapping[str, Any], mounts: Optional[str]) -> Node:
    """A Node from an Inquiry's facts and the text of /proc/self/mountinfo."""
    if "errno" in facts:
        return Node(path, errno=str(facts["errno"]))

    def said(value: Any) -> str:
        return "timeout" if isinstance(value, Mapping) else str(value or "")

    kept: Dict[str, Any] = {k: facts[k] for k in ("type", "rdev", "mode", "uid", "gid", "nlink", "size") if k in facts}
    return Node(
        path,
        access=said(facts.get("access")),
        open=said(facts.get("open")),
        nodev=None if mounts is None else "nodev" in _options(path, mounts),
        after=facts.get("after") or {},
        **kept,
    )


def _options(path: str, mounts: str) -> Tuple[str, ...]:
    """Of the mount that a path lies on."""
    mount = mountinfo.holding(mountinfo.parse(mounts), path)
    return mount.options if mount else ()


def _whole_range(uid_map: str) -> bool:
    return uid_map.split() == ["0", "0", "4294967295"]
