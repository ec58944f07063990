# SPDX-License-Identifier: Apache-2.0
"""What a topology implies for tensor parallelism: how near two GPUs are, which groups lie inside a NUMA node, and whether a
chosen set crosses one. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..catalogue import finding
from ..model import OK, WARN, Finding, Hint, Refused
from ..pci.topology import REDIRECTS, Device, Topology
from ..pci.topology import UNKNOWN as UNTOLD

CROSSES = "HT910"
SAME, PIX, PXB, PHB, NODE, SYS, UNKNOWN = "X", "PIX", "PXB", "PHB", "NODE", "SYS", "?"
WORDS = {
    PIX: "one PCIe switch",
    PXB: "several PCIe switches, no host bridge",
    PHB: "a PCIe host bridge",
    NODE: "several host bridges of one NUMA node",
    SYS: "the link between NUMA nodes",
    UNKNOWN: "not told",
}
"""nvidia-smi's and NCCL's words for the worst thing on the way between two GPUs. NVLink is not seen in sysfs."""


@dataclass(frozen=True)
class Group:
    """GPUs for one tensor parallel engine. nodes: those they lie on; more than one means that each step crosses sockets."""

    size: int
    gpus: Tuple[int, ...]
    nodes: Tuple[int, ...]


def path(one: Device, two: Device) -> str:
    """The word for the way between two GPUs."""
    if one.bdf == two.bdf:
        return SAME
    if one.node is not None and two.node is not None and one.node != two.node:
        return SYS
    if not one.root or not two.root:
        return UNKNOWN
    if one.root != two.root:
        return UNKNOWN if one.node is None or two.node is None else NODE
    common = 0
    while common < min(len(one.way), len(two.way)) and one.way[common] == two.way[common]:
        common += 1
    if common < 2:  # at most the root port in common
        return PHB
    # Below the switch's upstream port, one downstream port each: one switch. Any bridge more is a further switch.
    return PIX if max(len(one.way), len(two.way)) - common <= 1 else PXB


def paths(machine: Topology) -> Dict[Tuple[Optional[int], Optional[int]], str]:
    """{(GPU, GPU): word}, by number, both ways and the diagonal."""
    return {(a.number, b.number): path(a, b) for a in machine.gpus for b in machine.gpus}


def redirected(machine: Topology, one: Device, two: Device) -> Optional[Tuple[str, ...]]:
    """Ports that by ACS send what these two GPUs tell each other up to the root complex; None where it cannot be told."""
    if not one.way or not two.way:
        return None
    ports = [machine.bridges[b] for b in {*one.way} ^ {*two.way} if b in machine.bridges]
    found = tuple(sorted(p.bdf for p in ports if p.acs == REDIRECTS))
    return found if found or not any(p.acs == UNTOLD for p in ports) else None


def groups(machine: Topology) -> List[Group]:
    """For each power of two up to all GPUs: the groups of that size, inside a NUMA node where one has enough, nearest first."""
    by_node: Dict[int, List[Device]] = {}
    for gpu in machine.gpus:
        if gpu.node is not None:
            by_node.setdefault(gpu.node, []).append(gpu)
    out, size = [], 2
    while size <= len(machine.gpus):
        inside = [part for node in sorted(by_node) for part in _chunks(_near(by_node[node]), size)]
        across = [] if inside else _chunks([gpu for node in sorted(by_node) for gpu in _near(by_node[node])], size)
        out += [Group(size, tuple(sorted(map(_n, part))), _nodes(part)) for part in inside or across]
        size *= 2
    return out


def _near(gpus: Sequence[Device]) -> List[Device]:
    """Those below one switch stand beside each other, and before those that stand alone."""
    beside = {gpu.root: sum(other.root == gpu.root for other in gpus) for gpu in gpus}
    return sorted(gpus, key=lambda g: (-beside[g.root], g.root, g.way[:-1], _n(g)))


def _chunks(gpus: Sequence[Device], size: int) -> List[Sequence[Device]]:
    return [gpus[at : at + size] for at in range(0, len(gpus) - size + 1, size)]


def _nodes(gpus: Sequence[Device]) -> Tuple[int, ...]:
    return tuple(sorted({gpu.node for gpu in gpus if gpu.node is not None}))


def _n(gpu: Device) -> int:
    return -1 if gpu.number is None else gpu.number


def choose(machine: Topology, text: str) -> Tuple[int, ...]:
    """The GPUs that "0,1", "0-3", "numa:0" or "all" names, in order. Refused for what is no such text, or not there."""
    known = {_n(gpu): gpu for gpu in machine.gpus}
    if text == "all":
        return tuple(sorted(known))
    node = re.fullmatch(r"numa:(\d+)", text)
    if node:
        here = tuple(sorted(n for n, gpu in known.items() if gpu.node == int(node.group(1))))
        if not here:
            raise Refused("no GPU lies on NUMA node %s" % node.group(1), "--gpus", "hosttune topo shows the nodes")
        return here
    chosen: Set[int] = set()
    for part in text.split(","):
        span = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        first, last = (int(span.group(1)), int(span.group(2) or span.group(1))) if span else (1, 0)
        if first > last:
            raise Refused("%s is no set of GPUs" % (text or "an empty text"), "--gpus", "such as 0-3, 0,2,4 or numa:0")
        chosen |= set(range(first, last + 1))
    absent = sorted(chosen - set(known))
    if absent:
        raise Refused("there is no GPU %d" % absent[0], "--gpus", "there are: %s" % (spans(sorted(known)) or "none"))
    return tuple(sorted(chosen))


def of_engines(machine: Topology, engines: Mapping[str, Mapping[str, Any]]) -> List[Finding]:
    """HT910 for each declared engine that names its GPUs by number; one that names what is not there is told so."""
    found = []
    for name, engine in engines.items():
        gpus = str(engine.get("gpus", "all"))
        if not re.fullmatch(r"\d+(,\d+)+", gpus):
            continue  # all, a node's own, none, or by UUID
        try:
            found.append(crossing(machine, choose(machine, gpus), "engine %s, " % name))
        except Refused as e:
            found.append(finding(CROSSES, WARN, "engine " + name, "%s: %s" % (e.what, e.way_out)))
    return found


def crossing(machine: Topology, chosen: Sequence[int], whose: str = "") -> Finding:
    """HT910: do these GPUs lie on one node? With the set of the same size that does."""
    gpus = [gpu for gpu in machine.gpus if _n(gpu) in chosen]
    subject = "%sGPUs %s" % (whose, spans(chosen))
    unknown = [_n(gpu) for gpu in gpus if gpu.node is None]
    if unknown:
        what = "the NUMA node of GPU %s is not told: by firmware, or from inside a virtual machine" % spans(unknown)
        return finding(CROSSES, WARN, subject, what, want="one NUMA node")
    nodes = _nodes(gpus)
    if len(nodes) <= 1:
        return finding(CROSSES, OK, subject, "all lie on NUMA node %s" % (nodes[0] if nodes else "?"))
    have = "; ".join("%s on node %d" % (spans([_n(g) for g in gpus if g.node == node]), node) for node in nodes)
    on_one = [
        group for node in sorted({g.node for g in machine.gpus if g.node is not None})
        for group in _chunks(_near([g for g in machine.gpus if g.node == node]), len(chosen))
    ]  # fmt: skip
    hint = Hint()
    if on_one:
        best = max(on_one, key=lambda part: len({_n(g) for g in part} & set(chosen)))
        hint = Hint('gpus: "%s"' % ",".join(str(n) for n in sorted(map(_n, best))), "the engine's place in the profile",
                    "the engine is restarted", "reconfigure")  # fmt: skip
    summary = "they cross NUMA nodes: %s%s" % (have, "" if on_one else " (no node has %d GPUs)" % len(chosen))
    return finding(CROSSES, WARN, subject, summary, have="%d nodes" % len(nodes), want="one node", hint=hint)


def spans(numbers: Sequence[int]) -> str:
    """0-3,6 for 0, 1, 2, 3, 6."""
    out: List[str] = []
    run: List[int] = []
    for number in [*sorted(set(numbers)), None]:
        if run and number != run[-1] + 1:
            out.append("%d" % run[0] if len(run) == 1 else "%d-%d" % (run[0], run[-1]))
            run = []
        if number is not None:
            run.append(number)
    return ",".join(out)
