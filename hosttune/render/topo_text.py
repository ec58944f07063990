# SPDX-License-Identifier: Apache-2.0
"""A topology as a picture of characters: sockets, nodes, ports and what hangs from them; below it the ways between GPUs and the
groups that they imply. A pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import click

from ..core.gpu.groups import CROSSES, WORDS, groups, paths, redirected, spans
from ..core.gpu.peers import Peers
from ..core.model import WARN, Finding
from ..core.pci.link import End
from ..core.pci.topology import GPU, NIC, NVME, REDIRECTS, UNKNOWN, Device, Node, Topology
from .peers_text import p2p_words, reach
from .visible import visible

KIND = {GPU: "GPU", NIC: "NIC", NVME: "NVMe"}
NEAR = {"PIX": "green", "PXB": "green", "PHB": "cyan", "NODE": "cyan", "SYS": "yellow", "?": "magenta"}
_ASCII = str.maketrans({"├": "|", "└": "`", "│": "|", "─": "-", "·": "-", "↔": "=", "–": "-"})

Style = Callable[..., str]


@dataclass(frozen=True)
class Branch:
    """A line of the tree and what hangs from it. cells stand in columns to the right of it."""

    label: str
    cells: tuple[str, ...] = ()
    below: tuple[Branch, ...] = ()
    marked: bool = False


def render(
    machine: Topology,
    chosen: Sequence[int] = (),
    findings: Sequence[Finding] = (),
    colour: bool = False,
    ascii_only: bool = False,
    peers: Peers | None = None,
) -> str:
    """The whole picture, ending in a line feed. chosen: GPUs to mark; findings: what is said of them and of the links; peers:
    what the driver and CUDA said, None where they were not asked."""
    style: Style = click.style if colour else lambda text, **_: text
    lines = [title(machine), ""]
    lines += _tree(machine, chosen, style)
    told = (
        reach(machine, peers, style) if peers else (),
        _groups(machine, style),
        _facts(machine, peers),
        _told(findings, style),
    )
    for part in (_matrix(machine, style), *told):
        more = list(part)
        lines += ["", *more] if more else []
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text.translate(_ASCII).encode("ascii", "replace").decode() if ascii_only else text


def title(machine: Topology) -> str:
    """pve1: 2 sockets, 2 NUMA nodes, 8 GPUs."""
    sockets = {node.socket for node in machine.nodes if node.socket is not None}
    parts = [_count(len(sockets), "socket")] if sockets else []
    parts += [_count(len(machine.nodes), "NUMA node"), _count(len(machine.gpus), "GPU")]
    return "%s: %s" % (visible(machine.machine), ", ".join(parts))


def _count(number: int, what: str) -> str:
    return "%d %s%s" % (number, what, "" if number == 1 else "s")


def link_words(link: End, can: End) -> tuple[str, str]:
    """Width and speed: now, and at most where that is more."""
    if link == can == End():
        return "", ""  # no PCI Express, or nothing that tells of a link: virtio in a virtual machine
    width = "x%d" % link.width if link.width else "x?"
    speed = "%g" % link.speed if link.speed else "?"
    if can.max_width and can.max_width != link.width:
        width += " of x%d" % can.max_width
    if can.max_speed and can.max_speed != link.speed:
        speed += " of %g" % can.max_speed
    return width, speed + " GT/s"


def short(bdf: str) -> str:
    """Without the domain, where that is 0."""
    return bdf[len("0000:") :] if bdf.startswith("0000:") else bdf


def node_words(node: Node) -> str:
    """CPUs, memory, and the distance to each other node."""
    parts = ["CPUs %s" % node.cpus] if node.cpus else ["no CPU"]
    parts += ["%.0f GiB" % (node.memory / 2**30)] if node.memory else []
    parts += ["node %d at distance %d" % (to, far) for to, far in node.distances.items() if to != node.id]
    return " · ".join(parts)


def _tree(machine: Topology, chosen: Sequence[int], style: Style) -> list[str]:
    sockets: dict[int | None, list[Node]] = {}
    for node in machine.nodes:
        sockets.setdefault(node.socket, []).append(node)
    tops = [
        Branch(
            "socket %s" % ("?" if socket is None else socket),
            (),
            tuple(_of_node(machine, node, chosen) for node in nodes),
        )
        for socket, nodes in sockets.items()
    ]
    lost = [d for d in machine.devices if d.node is None]
    if lost:
        tops.append(Branch("NUMA node not told", (), _hang(machine, lost, 0, chosen)))
    rows = [row for top in tops for row in _rows(top, "", "")]
    left = max((len(prefix + branch.label) for prefix, branch in rows if branch.cells), default=0)
    columns = [max(map(len, cells)) for cells in zip(*(b.cells for _, b in rows if b.cells), strict=True)]
    return [_line(prefix, branch, left, columns, style) for prefix, branch in rows]


def _line(prefix: str, branch: Branch, left: int, columns: Sequence[int], style: Style) -> str:
    head = style(branch.label, bold=True) if branch.marked or not prefix else branch.label
    if not branch.cells:
        return prefix + head
    pad = " " * (left - len(prefix + branch.label))
    cells = ["%-*s" % (width, cell) for width, cell in zip(columns, branch.cells, strict=True)]
    cells = [style(cell, fg="yellow", bold=True) if "!" in cell else cell for cell in cells]
    return prefix + head + pad + "  " + "  ".join(cells)


def _rows(branch: Branch, first: str, rest: str) -> Iterator[tuple[str, Branch]]:
    yield first, branch
    for n, child in enumerate(branch.below):
        last = n == len(branch.below) - 1
        yield from _rows(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def _of_node(machine: Topology, node: Node, chosen: Sequence[int]) -> Branch:
    here = [d for d in machine.devices if d.node == node.id]
    return Branch("NUMA node %d · %s" % (node.id, node_words(node)), (), _hang(machine, here, 0, chosen))


def _hang(machine: Topology, devices: Sequence[Device], depth: int, chosen: Sequence[int]) -> tuple[Branch, ...]:
    """The devices below their bridges of this depth. A bridge with one device and no further bridge is one line with it."""
    by_bridge: dict[str, list[Device]] = {}
    for device in devices:
        by_bridge.setdefault(device.way[depth] if depth < len(device.way) else "", []).append(device)
    out = []
    for bdf, below in by_bridge.items():
        if not bdf:
            out += [_leaf(machine, device, "", chosen) for device in below]
            continue
        bridge = machine.bridges[bdf]
        name = "%s %s" % ({"root port": "port", "switch port": "port"}.get(bridge.kind, bridge.kind), short(bdf))
        if len(below) == 1 and len(below[0].way) == depth + 1:
            out.append(_leaf(machine, below[0], name + " ── ", chosen))
        else:
            words = " ".join(link_words(bridge.link, bridge.link)) if bridge.kind == "switch" else ""
            out.append(Branch("%s %s" % (name, words), (), _hang(machine, below, depth + 1, chosen)))
    return tuple(out)


def _leaf(machine: Topology, device: Device, port: str, chosen: Sequence[int]) -> Branch:
    marked = device.number in chosen and device.kind == GPU
    name = "GPU %s" % device.number if device.kind == GPU else device.name or KIND[device.kind]
    width, speed = link_words(device.link, device.can)
    acs = "ACS redirects" if any(b.acs == REDIRECTS for b in machine.upstream_of(device.bdf)) else ""
    cells = (short(device.bdf), width + (" !" if device.narrow else ""), speed, device.driver or "no driver", acs)
    return Branch(port + visible(name) + (" *" if marked else ""), tuple(visible(c) for c in cells), (), marked)


def _matrix(machine: Topology, style: Style) -> Iterator[str]:
    numbers = [gpu.number for gpu in machine.gpus if gpu.number is not None]
    if len(numbers) < 2:
        return
    word = paths(machine)
    yield "ways between GPUs over PCIe (NVLink is not seen in /sys: nvidia-smi topo -m)"
    yield "      " + "".join("%-5d" % n for n in numbers)
    for a in numbers:
        cells = [word[a, b] for b in numbers]
        yield "%4d  " % a + "".join(style("%-5s" % c, fg=NEAR.get(c)) for c in cells)
    used = [w for w in WORDS if w in word.values()]
    yield "      " + ", ".join("%s: %s" % (w, WORDS[w]) for w in used)


def _groups(machine: Topology, style: Style) -> Iterator[str]:
    told = groups(machine)
    if told:
        yield "groups for tensor parallelism"
    for size in dict.fromkeys(g.size for g in told):
        parts = []
        for group in (g for g in told if g.size == size):
            where = "node %d" % group.nodes[0] if len(group.nodes) == 1 else "across nodes %s" % spans(group.nodes)
            words = "%s (%s)" % (spans(group.gpus), where)
            parts.append(words if len(group.nodes) == 1 else style(words, fg="yellow"))
        yield "  TP%-3d %s" % (size, "  ".join(parts))


def _facts(machine: Topology, peers: Peers | None) -> Iterator[str]:
    if machine.gpus:
        what = "minor (/dev/nvidiaN)" if machine.numbered_by == "minor" else "PCI order: no driver tells their minors"
        yield "numbers   by %s" % what
        models = {gpu.name for gpu in machine.gpus if gpu.name}
        if models:
            yield "GPUs      %s" % visible(", ".join(sorted(models)))
        yield "IOMMU     %s" % machine.iommu
        yield "ACS       %s" % acs_words(machine)
        yield "P2P       %s" % p2p_words(peers)
        if any(g.link.speed and g.link.speed < g.can.max_speed for g in machine.gpus):
            yield "speed     a GPU without work lowers its link's speed: that is no fault. Lanes do not change."
    for where, why in machine.unknown[:4]:
        yield "not read  %s: %s%s" % (visible(where), why, " (run it as root)" if why in ("EACCES", "EPERM") else "")
    if len(machine.unknown) > 4:
        yield "not read  and %d more" % (len(machine.unknown) - 4)


def acs_words(machine: Topology) -> str:
    """What ACS on the way of the GPUs does to what they tell each other. It matters below a common switch: from one root port
    to another all goes through the root complex anyway."""
    ports = [b for gpu in machine.gpus for b in machine.upstream_of(gpu.bdf)]
    word = paths(machine)
    pairs = [
        (a, b)
        for a in machine.gpus
        for b in machine.gpus
        if a.bdf < b.bdf and word[a.number, b.number] in ("PIX", "PXB")
    ]
    sent_up = [by for a, b in pairs if (by := redirected(machine, a, b))]
    if sent_up:
        names = [short(b) for b in sorted({b for by in sent_up for b in by})]
        listed = ", ".join(names[:4]) + (" and %d more" % (len(names) - 4) if len(names) > 4 else "")
        return "sends %d of %d pairs below a switch up to the root complex (%s)" % (len(sent_up), len(pairs), listed)
    if not ports and all(gpu.root for gpu in machine.gpus):
        return "no port is above the GPUs: is this a virtual machine?"
    if not ports or any(b.acs == UNKNOWN for b in ports):
        return "unknown: %s" % (
            "config space is shown to root only" if ports else "the ports above the GPUs are not told"
        )
    if any(b.acs == REDIRECTS for b in ports):
        return "redirects on root ports alone; no two GPUs are below one switch"
    return "redirects nothing on the way of any GPU"


def _told(findings: Sequence[Finding], style: Style) -> Iterator[str]:
    for f in findings:
        if f.status == WARN or f.id == CROSSES:
            mark = style("! ", fg="yellow", bold=True) if f.status == WARN else style("✓ ", fg="green")
            yield "%s%s  %s: %s" % (mark, f.id, f.subject, visible(f.summary))
            if f.hint.command:
                yield "     %s (%s):  %s" % (f.hint.word, f.hint.where, style(f.hint.command, bold=True))
