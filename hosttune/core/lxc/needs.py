# SPDX-License-Identifier: Apache-2.0
"""Which device nodes a container shall have, and in which form its config gives them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import List, Mapping, Optional, Tuple

from ..machine.devices import CAPS, DRM_MAJOR, LARGEST_MAJOR, UVM, DeviceTable, driver_of, expected_minor, is_dynamic
from ..model import Refused
from .document import LXC
from .entries import Entries

KEEP, DEV, PATH, NUMBER = "keep", "dev", "path", "number"
FORMS = (KEEP, DEV, PATH, NUMBER)
DEV_SINCE = (5, 0, 7)
"""pve-container knows devN since this version (Proxmox VE 8.1)."""

CTL, UVM_NODE, UVM_TOOLS, CAPS_DIR = "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps"


@dataclass(frozen=True)
class Wanted:
    """What a container is declared to have.

    gpus     numbers N of /dev/nvidiaN, and no others; None for all that the host has, () for those that its config names
    required it shall not start without them
    form     keep what is there, or dev, path, number
    caps     the nodes below /dev/nvidia-caps too (MIG)
    drop     majors that the owner says are stale; prune: so are those whose owner nobody can tell
    dri      nodes of /dev/dri, by path
    cpus     the CPUs that it shall be pinned to, as a list ("0-15,64-79"); "" says nothing of them
    vms      {GPU number: "file:line"} of those that a virtual machine is given: never added
    refused  EPERM was seen inside, so this unprivileged container needs rules like any other
    repair   lines that Proxmox VE would drop are mended where their meaning is plain
    serves   (engine, port) pairs that are declared to be served from it
    """

    gpus: Optional[Tuple[int, ...]] = ()
    required: bool = False
    form: str = KEEP
    caps: bool = False
    drop: Tuple[int, ...] = ()
    prune: bool = False
    dri: Tuple[str, ...] = ()
    cpus: str = ""
    vms: Mapping[int, str] = field(default_factory=dict)
    refused: bool = False
    repair: bool = False
    serves: Tuple[Tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise Refused("form %r is not one of %s" % (self.form, ", ".join(FORMS)), "container", "use --form keep")
        for major in self.drop:
            if not 1 <= major <= LARGEST_MAJOR:
                raise Refused("%d is no major: they go from 1 to %d" % (major, LARGEST_MAJOR), "drop", "cat /proc/devices")


@dataclass(frozen=True)
class Need:
    """One node that the container needs: numbers as /proc/devices has them now. major is None while the driver is not
    loaded; minor is None where any of the driver's will do (a whole folder)."""

    path: str
    driver: str
    major: Optional[int]
    minor: Optional[int]

    @property
    def numbers(self) -> str:
        """"511:0", with * for what is open and ? for what is not known."""
        return "%s:%s" % ("?" if self.major is None else self.major, "*" if self.minor is None else self.minor)


def is_concerned(have: Entries, wanted: Wanted, devices: DeviceTable) -> bool:
    """Whether this container has, or shall have, anything of NVIDIA's. Others are never touched."""
    return bool(wanted.gpus is None or wanted.gpus or wanted.dri or have.nvidia_paths or have.hook
                or have.nvidia_rules(devices) or have.nvidia_rules(devices, dead=True))


def gpu_numbers(have: Entries, wanted: Wanted, devices: DeviceTable) -> Tuple[int, ...]:
    """The wanted GPUs as numbers. "All" means those that the config names where /dev was not looked at."""
    named = sorted(int(m.group(1)) for m in (re.match(r"/dev/nvidia(\d+)\Z", path) for path in have.nvidia_paths) if m)
    if wanted.gpus is None:
        every = devices.gpus() if devices.nodes is not None else tuple(named)
        return tuple(n for n in every if n not in wanted.vms)
    return tuple(sorted(set(wanted.gpus))) if wanted.gpus else tuple(named)


def absent_gpus(have: Entries, wanted: Wanted, devices: DeviceTable) -> Tuple[int, ...]:
    """Wanted GPUs that the host has no node for (none where /dev was not looked at)."""
    if devices.nodes is None:
        return ()
    return tuple(n for n in gpu_numbers(have, wanted, devices) if "/dev/nvidia%d" % n not in devices.nodes)


def needs(have: Entries, wanted: Wanted, devices: DeviceTable) -> Tuple[Need, ...]:
    """What CUDA needs (the GPUs, nvidiactl, nvidia-uvm), and what else of NVIDIA's the config names already. Where
    nothing is there yet, or the form changes, nvidia-uvm-tools too, if the host has it: profilers want it."""
    if not is_concerned(have, wanted, devices):
        return ()
    gone = absent_gpus(have, wanted, devices)
    paths = ["/dev/nvidia%d" % n for n in gpu_numbers(have, wanted, devices) if n not in gone]
    paths += [CTL, UVM_NODE]
    fresh = wanted.form != KEEP or not (have.nvidia_paths or have.nvidia_rules(devices) or have.hook)
    if UVM_TOOLS in have.nvidia_paths or (fresh and UVM_TOOLS in (devices.nodes or {})):
        paths.append(UVM_TOOLS)
    if "/dev/nvidia-modeset" in have.nvidia_paths:
        paths.append("/dev/nvidia-modeset")
    out = [Need(path, driver_of(path), devices.major(driver_of(path)), expected_minor(path)) for path in paths]
    return tuple(out + _caps(have, wanted, devices) + _dri(wanted, devices))


def _caps(have: Entries, wanted: Wanted, devices: DeviceTable) -> List[Need]:
    """Nodes below /dev/nvidia-caps, if they are wanted or the config names them (NVIDIA's hook: by a rule)."""
    major = devices.major(CAPS)
    named = {path for path in have.nvidia_paths if driver_of(path) == CAPS}
    whole = wanted.caps or CAPS_DIR in have.paths
    ruled = have.hook and any(rule.major == major for _, rule in have.nvidia_rules(devices, dead=True))
    if major is None or not (named or whole or ruled):
        return []
    nodes = {path: node.minor for path, node in devices.below(CAPS_DIR) if driver_of(path) == CAPS}
    if ruled or whole and not nodes:
        return [Need(CAPS_DIR, CAPS, major, None)]
    return [Need(path, CAPS, major, nodes.get(path)) for path in sorted(named | (set(nodes) if whole else set()))]


def _dri(wanted: Wanted, devices: DeviceTable) -> List[Need]:
    """The wanted nodes of /dev/dri that the host has: a graphics node that is not there keeps nobody from computing."""
    nodes = devices.nodes or {}
    return [Need(path, "drm", DRM_MAJOR, nodes[path].minor) for path in wanted.dri
            if path in nodes and nodes[path].type == "char"]


def form_of(have: Entries, wanted: Wanted, devices: DeviceTable, dialect: str) -> str:
    """The form in which something missing is added: the wanted one, else the one that is there, else devN where the
    container shall not start without its GPUs, else path rules, with which it starts."""
    if wanted.form != KEEP:
        if wanted.form == DEV and have.hook:
            raise Refused("NVIDIA's mount hook makes the device nodes of this container", "lxc.hook.mount",
                          "use --form path, or remove that line first")
        if wanted.form == DEV and dialect == LXC:
            raise Refused("devN entries are Proxmox VE's, and this is a plain LXC config", "container",
                          "use --form path or --form number")
        if wanted.form == DEV and devices.pve_container is not None and devices.pve_container < DEV_SINCE:
            raise Refused("devN entries need pve-container %s, this host has %s" % tuple(
                ".".join(map(str, version)) for version in (DEV_SINCE, devices.pve_container)), "container",
                "use --form path, or upgrade Proxmox VE")
        return wanted.form
    if any(path in have.nvidia_paths for path in (entry.path for _, entry in have.devs)):
        return DEV
    numeric = have.nvidia_rules(devices) or have.nvidia_rules(devices, dead=True) or any(
        rule.type == "c" and rule.major is not None and is_dynamic(rule.major) for _, rule in have.rules)
    if numeric and (have.nvidia_paths or have.hook or have.nvidia_rules(devices) or have.nvidia_rules(devices, dead=True)):
        return NUMBER
    if have.nvidia_paths:
        return PATH
    can_dev = dialect != LXC and devices.pve_container is not None and devices.pve_container >= DEV_SINCE
    return DEV if wanted.required and can_dev else PATH


def uvm_is_loaded(devices: DeviceTable) -> bool:
    """Whether /proc/devices names nvidia-uvm: without it nobody can say which number it will have."""
    return devices.major(UVM) is not None
