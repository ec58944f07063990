# SPDX-License-Identifier: Apache-2.0
"""The CPUs of a container and the NUMA nodes of its GPUs.

Proxmox VE gives a container with `cores:` below the machine's number that many CPUs, and its pvestatd deals them out anew
every ten seconds or so without regard to NUMA. A line `lxc.cgroup2.cpuset.cpus` in the config ends that: it takes the place
of `cores` (how much of them may be used stays `cpulimit`).
"""

from __future__ import annotations

import errno
import re
from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple

from ..catalogue import finding
from ..door.host import Host, Unrecorded, list_or_empty, read_or_none
from ..gpu import gpus
from ..model import FITS, OK, WARN, Action, Finding, Hint, Refused
from ..pci import bus
from .document import RAW, Document, Line, effective_keys
from .store import Config

KEY = "lxc.cgroup2.cpuset.cpus"
ID = "HT435"
ANY, NUMA = "any", "numa"
CONTROLLERS = "/sys/fs/cgroup/cgroup.controllers"
NODES, ONLINE = "/sys/devices/system/node", "/sys/devices/system/cpu/online"


def parse_list(text: str) -> FrozenSet[int]:
    """0-3,8 -> {0, 1, 2, 3, 8}; what is none, and nothing, is the empty set."""
    out = set()
    for part in text.strip().split(","):
        match = re.match(r"(\d{1,5})(?:-(\d{1,5}))?\Z", part)
        if match:
            out |= set(range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1))
    return frozenset(out)


def format_list(cpus: FrozenSet[int]) -> str:
    """{0, 1, 2, 3, 8} -> 0-3,8"""
    out: List[List[int]] = []
    for cpu in sorted(cpus):
        if out and cpu == out[-1][1] + 1:
            out[-1][1] = cpu
        else:
            out.append([cpu, cpu])
    return ",".join(str(a) if a == b else "%d-%d" % (a, b) for a, b in out)


def lines(document: Document) -> Tuple[Line, ...]:
    """The lines of main that pin the container; of several the last one counts."""
    return tuple(line for line in document.main if line.kind == RAW and line.key == KEY)


def pin(remove: Dict[int, str], add: List[Tuple[str, str, str]], document: Document, cpus: str) -> None:
    """Put the change that pins the container to `cpus` into a plan of lines to remove and to add; "" plans nothing."""
    there = lines(document)
    if not cpus or there and parse_list(there[-1].value) == parse_list(cpus):
        return
    remove.update((line.number, "other CPUs are declared") for line in there)
    add.append((KEY, cpus, "the CPUs that are declared"))


def nodes(host: Host) -> Dict[int, FrozenSet[int]]:
    """{NUMA node: its CPUs}, of nodes that have any."""
    out = {}
    for name in list_or_empty(host, NODES):
        if re.match(r"node\d+\Z", name):
            cpus = parse_list(read_or_none(host, "%s/%s/cpulist" % (NODES, name)) or "")
            if cpus:
                out[int(name[4:])] = cpus
    return out


def gpu_nodes(host: Host, minors: Optional[Sequence[int]]) -> FrozenSet[int]:
    """The NUMA nodes of GPUs, by their minors (None: all of them). Where a GPU's node is not known there is none to tell."""
    by_bdf = gpus.minors(host)
    found = frozenset(gpu.numa_node for gpu in bus.gpus(host)
                      if gpu.bdf in by_bdf and (minors is None or by_bdf[gpu.bdf] in minors))
    return frozenset() if -1 in found else found


def wanted(host: Host, declared: str, minors: Optional[Sequence[int]]) -> str:
    """A declaration (any, numa, a list) as a list of CPUs, "" for any. Refused where the GPUs' node cannot be told, for CPUs
    that the machine does not have, and where a container with such a line would not start."""
    if declared == ANY:
        return ""
    controllers = _known(host, CONTROLLERS)
    if controllers is not None and "cpuset" not in controllers.split():
        raise Refused("cgroup v2 has no cpuset controller here, and LXC starts no container that is to be pinned by it",
                      CONTROLLERS, "leave its CPUs to Proxmox VE (cpus: any)")
    if declared != NUMA:
        absent = parse_list(declared) - parse_list(_known(host, ONLINE) or declared)
        if absent:
            raise Refused("this machine has no CPU %d" % min(absent), "cpus: " + declared, "lscpu -e shows which there are")
        return format_list(parse_list(declared))
    try:
        by_node, chosen = nodes(host), gpu_nodes(host, minors)
    except Unrecorded:
        by_node, chosen = {}, frozenset()
    if not chosen or not chosen <= set(by_node):
        raise Refused("the NUMA node of its GPUs cannot be told", "cpus: numa",
                      "name the CPUs (cpus: \"0-15\"), or leave them to Proxmox VE (cpus: any)")
    return format_list(frozenset(cpu for node in chosen for cpu in by_node[node]))


def _known(host: Host, path: str) -> Optional[str]:
    """A file's text, "" where there is none, None where a recording does not hold it."""
    try:
        return read_or_none(host, path) or ""
    except Unrecorded:
        return None


def judge(host: Host, config: Config, minors: Optional[Sequence[int]]) -> List[Finding]:
    """Whether the container's CPUs are on its GPUs' node; nothing on a machine of one node, or where that cannot be told."""
    try:
        by_node = nodes(host)
        near = gpu_nodes(host, minors) if len(by_node) > 1 else frozenset()
        online = len(parse_list(read_or_none(host, ONLINE) or ""))
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.EACCES):
            raise
        return []
    if len(near) != 1:
        return []
    (node,) = near
    local = by_node.get(node, frozenset())
    place, how, cpus = _has(config.document, online)
    if not how or not local:
        return []
    if cpus and cpus <= local:
        return [finding(ID, OK, config.subject, "%s, on node %d like its GPUs" % (how, node), have=format_list(cpus),
                        want=format_list(local))]
    summary = "%s, and its GPUs are on NUMA node %d" % (how, node)
    return [finding(ID, WARN, config.subject, summary, have=format_list(cpus) or how, want=format_list(local), proof=FITS,
                    evidence=(place,), decide="" if cpus else "lxc-cgroup -n %s cpuset.cpus" % config.id,
                    hint=Hint("hosttune lxc sync %s --cpus numa" % config.id, "host",
                              "nothing is restarted; the line takes the place of `cores`", "apply"))]


def _has(document: Document, online: int) -> Tuple[str, str, FrozenSet[int]]:
    """(file:line, in words, the CPUs if they are fixed) of what the config says of CPUs; no words if it leaves them all."""
    there = lines(document)
    if there:
        return document.place(there[-1]), "it is pinned to CPUs " + there[-1].value, parse_list(there[-1].value)
    cores = effective_keys(document.main).get("cores")
    if cores is None or not cores.value.isdigit() or not online or int(cores.value) >= online:
        return "", "", frozenset()
    return document.place(cores), "it has %s of %d CPUs, and Proxmox VE deals them out over all nodes" % (
        cores.value, online), frozenset()


def live(host: Host, config: Config, cpus: str) -> Tuple[Action, ...]:
    """What pins the running container now, if it is not yet. Where the controller is not there, nothing."""
    ran = host.run(["lxc-cgroup", *config.tool_options, "cpuset.cpus"]) if cpus else None
    if ran is None or ran.rc or parse_list(ran.out) == parse_list(cpus):
        return ()
    return (Action("live-cpus", config.subject, ("lxc-cgroup", *config.tool_options, "cpuset.cpus", cpus),
                   "it runs on CPUs %s, and %s are declared" % (ran.out.strip() or "of every node", cpus),
                   costs="nothing is lost; memory that it has already stays where it is"),)
