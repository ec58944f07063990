# SPDX-License-Identifier: Apache-2.0
"""A topology as an SVG picture. A pure function; the same input gives the same bytes.

One column a socket, its NUMA nodes below each other. A line's thickness is its lanes now, the pale line below it those that both
ends could have. Light and dark after the viewer's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from ..core.gpu.groups import WORDS, groups, paths, spans
from ..core.gpu.peers import Peers
from ..core.model import WARN, Finding
from ..core.pci.topology import GPU, REDIRECTS, Device, Topology
from .peers_text import p2p_words
from .svg_sheet import STYLE, Sheet
from .topo_text import KIND, acs_words, link_words, node_words, short, title
from .visible import visible

MARGIN, GAP, PAD = 24, 72, 16
PORT_WIDTH, PORT_HEIGHT = 74, 22
SWITCH_WIDTH, LINE = 64, 162
CARD_WIDTH, CARD_HEIGHT, ROW = 236, 42, 52
HEAD = 58
CELL_WIDTH, CELL_HEIGHT, DOT = 42, 22, 24

Panel = tuple[str, str, list[Device]]
"""A node's name, its words, its devices."""
_HUES = {"PIX": "near", "PXB": "near", "PHB": "mine", "NODE": "mine", "SYS": "far", "X": "self", "?": "untold"}


@dataclass(frozen=True)
class Port:
    """A bridge in the picture and what hangs from it; rows: how many devices that are. bdf "": straight on the root bus."""

    bdf: str
    devices: tuple[Device, ...] = ()
    ports: tuple[Port, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.devices) + sum(port.rows for port in self.ports)


def render(
    machine: Topology, chosen: Sequence[int] = (), findings: Sequence[Finding] = (), peers: Peers | None = None
) -> str:
    """The SVG document. chosen: GPUs to mark; findings: those that are not well are written above the picture; peers: what the
    driver and CUDA said, None where they were not asked."""
    sheet = Sheet()
    sheet.put("title").text = visible(title(machine))
    sheet.put("style").text = STYLE
    width, y = _size(machine), float(MARGIN)
    sheet.text(MARGIN, y + 16, title(machine), "h1")
    y += 38
    for words in _facts(machine, peers):
        sheet.text(MARGIN, y, words, "dim", int((width - 2 * MARGIN) / 6.2))
        y += 17
    for finding in findings:
        if finding.status == WARN:
            y = _band(sheet, finding, y, width)
    y = _sockets(sheet, machine, chosen, y + 8)
    y = max(_matrix(sheet, machine, y + 24), _groups(sheet, machine, y + 24))
    y = _legend(sheet, machine, y + 20)
    sheet.root.set("viewBox", "0 0 %g %g" % (width, y + MARGIN))
    sheet.root.set("width", "%g" % width)
    sheet.root.set("height", "%g" % (y + MARGIN))
    ET.indent(sheet.root, " ")
    return ET.tostring(sheet.root, "unicode") + "\n"


def _facts(machine: Topology, peers: Peers | None) -> list[str]:
    models = sorted({gpu.name for gpu in machine.gpus if gpu.name})
    by = "minor (/dev/nvidiaN)" if machine.numbered_by == "minor" else "PCI order"
    facts = [" · ".join([*models, "numbered by " + by, "IOMMU " + machine.iommu])] if machine.gpus else []
    p2p = "not asked (hosttune topo --deep)" if peers is None else p2p_words(peers)
    facts += ["ACS %s · P2P %s" % (acs_words(machine), p2p)] if machine.gpus else []
    return facts + (["%d files could not be read" % len(machine.unknown)] if machine.unknown else [])


def _band(sheet: Sheet, finding: Finding, y: float, width: float) -> float:
    sheet.box(MARGIN, y - 6, width - 2 * MARGIN, 28, "band")
    fix = "  →  %s" % finding.hint.command if finding.hint.command else ""
    words = "! %s  %s: %s%s" % (finding.id, finding.subject, finding.summary, fix)
    sheet.text(MARGIN + 12, y + 12, words, "warn bold", int((width - 2 * MARGIN) / 6.8))
    return y + 34


# ---- sockets, nodes, what hangs below


def _columns(machine: Topology) -> list[tuple[str, list[Panel]]]:
    """[(socket, [(node, its words, its devices)])]; devices without a node last, in a column of their own."""
    sockets: dict[str, list[Panel]] = {}
    for node in machine.nodes:
        name = "Socket %s" % ("?" if node.socket is None else node.socket)
        here = [d for d in machine.devices if d.node == node.id]
        sockets.setdefault(name, []).append(("NUMA node %d" % node.id, node_words(node), here))
    lost = [d for d in machine.devices if d.node is None]
    if lost:
        sockets["Not told"] = [("NUMA node not told", "by firmware, or from inside a virtual machine", lost)]
    return list(sockets.items())


def _hang(machine: Topology, devices: Sequence[Device], depth: int = 0) -> list[Port]:
    by_bridge: dict[str, list[Device]] = {}
    for device in devices:
        by_bridge.setdefault(device.way[depth] if depth < len(device.way) else "", []).append(device)
    out = []
    for bdf, below in by_bridge.items():
        here = tuple(d for d in below if len(d.way) <= depth + 1)
        deeper = [d for d in below if len(d.way) > depth + 1]
        out.append(Port(bdf, here, tuple(_hang(machine, deeper, depth + 1))))
    return out


def _levels(machine: Topology) -> int:
    """How many switches stand one behind the other at most."""
    return max((len(device.way) // 2 for device in machine.devices), default=0)


def _panel_width(machine: Topology) -> float:
    return 2 * PAD + 24 + PORT_WIDTH + _levels(machine) * (SWITCH_WIDTH + LINE) + LINE + CARD_WIDTH


def _size(machine: Topology) -> float:
    columns = min(2, max(1, len(_columns(machine))))
    return max(columns * (_panel_width(machine) + 2 * PAD) + (columns - 1) * GAP + 2 * MARGIN, 760)


def _sockets(sheet: Sheet, machine: Topology, chosen: Sequence[int], y: float) -> float:
    """At most two sockets beside each other."""
    columns = _columns(machine)
    for at in range(0, len(columns), 2):
        bottoms, pair = [], columns[at : at + 2]
        heights = [sum(_node_height(node) + PAD for node in nodes) + 34 for _, nodes in pair]
        for n, (name, nodes) in enumerate(pair):
            x = MARGIN + n * (_panel_width(machine) + 2 * PAD + GAP)
            sheet.box(x, y, _panel_width(machine) + 2 * PAD, max(heights), "socket", 12)
            sheet.text(x + PAD, y + 22, name, "h2")
            below = y + 34
            for node in nodes:
                _node(sheet, machine, node, x + PAD, below, chosen)
                below += _node_height(node) + PAD
            bottoms.append(y + max(heights))
        if len(pair) == 2 and "Not told" not in dict(pair):
            _between(sheet, machine, MARGIN + _panel_width(machine) + 2 * PAD, y + 34 + HEAD / 2)
        y = max(bottoms) + 20
    return y


def _between(sheet: Sheet, machine: Topology, x: float, y: float) -> None:
    """The link between two sockets, with the distance of their nodes as the kernel tells it."""
    sheet.line(x - PAD, y, x + GAP + PAD, y, "between")
    far = max((d for node in machine.nodes for d in node.distances.values()), default=0)
    sheet.text(x + GAP / 2, y - 9, "socket link", "small mid warn bold")
    if far:
        sheet.text(x + GAP / 2, y + 19, "distance %d" % far, "small mid warn")


def _node_height(node: Panel) -> float:
    return HEAD + max(1, len(node[2])) * ROW + 6


def _node(sheet: Sheet, machine: Topology, node: Panel, x: float, y: float, chosen: Sequence[int]) -> None:
    name, words, devices = node
    sheet.box(x, y, _panel_width(machine), _node_height(node), "node", 9)
    sheet.text(x + PAD, y + 23, name, "h2")
    sheet.text(x + PAD, y + 41, words, "small dim", int(_panel_width(machine) / 6.4))
    if not devices:
        sheet.text(x + PAD, y + HEAD + ROW / 2, "no GPU, NIC or NVMe drive", "dim")
        return
    spine, top = x + PAD + 6, y + HEAD
    middles = []
    for port in _hang(machine, devices):
        middles += _port(sheet, machine, port, spine, top, x + _panel_width(machine) - PAD - CARD_WIDTH, chosen)
        top += port.rows * ROW
    sheet.line(spine, y + HEAD - 6, spine, max(middles), "spine")
    sheet.put("circle", cx=spine, cy=y + HEAD - 6, r=3.5, class_="complex")


def _port(
    sheet: Sheet, machine: Topology, port: Port, spine: float, top: float, cards: float, chosen: Sequence[int]
) -> list[float]:
    """A root port with all below it; the heights at which it hangs from the spine."""
    if not port.bdf:
        for n, device in enumerate(port.devices):
            middle = top + n * ROW + ROW / 2
            sheet.line(spine, middle, cards, middle, "spine")
            _card(sheet, device, cards, middle, chosen)
        return [top + n * ROW + ROW / 2 for n in range(len(port.devices))]
    middle, left = top + port.rows * ROW / 2, spine + 18
    sheet.line(spine, middle, left, middle, "spine")
    if port.devices:
        for n, device in enumerate(port.devices):
            row = top + n * ROW + ROW / 2
            _link(sheet, machine, device, left + PORT_WIDTH, row if len(port.devices) > 1 else middle, cards)
            _card(sheet, device, cards, row, chosen)
    for n, switch in enumerate(port.ports):
        at = top + (len(port.devices) + sum(p.rows for p in port.ports[:n])) * ROW
        _switch(sheet, machine, switch, left + PORT_WIDTH, at, cards, chosen)
    sheet.box(left, middle - PORT_HEIGHT / 2, PORT_WIDTH, PORT_HEIGHT, "port", 11)
    sheet.text(left + PORT_WIDTH / 2, middle + 4, short(port.bdf), "mono mid")
    return [middle]


def _switch(
    sheet: Sheet, machine: Topology, switch: Port, x: float, top: float, cards: float, chosen: Sequence[int]
) -> None:
    """A switch as one tall box; below it its ports with their devices, or further switches."""
    bridge = machine.bridges[switch.bdf]
    middle, left = top + switch.rows * ROW / 2, x + LINE
    sheet.line(x, middle, left, middle, "link", _thick(bridge.link.width))
    sheet.text(x + LINE / 2, middle - 8, " · ".join(link_words(bridge.link, bridge.link)), "small mid")
    sheet.box(left, top + 4, SWITCH_WIDTH, switch.rows * ROW - 8, "switch")
    sheet.text(left + SWITCH_WIDTH / 2, middle - 4, "switch", "mid bold")
    sheet.text(left + SWITCH_WIDTH / 2, middle + 12, short(switch.bdf), "mono mid")
    row = top
    for port in switch.ports:
        for device in port.devices:
            _link(sheet, machine, device, left + SWITCH_WIDTH, row + ROW / 2, cards)
            _card(sheet, device, cards, row + ROW / 2, chosen)
            row += ROW
        for deeper in port.ports:
            _switch(sheet, machine, deeper, left + SWITCH_WIDTH, row, cards, chosen)
            row += deeper.rows * ROW


def _thick(lanes: int) -> float:
    return {16: 7, 8: 4, 4: 2.5, 2: 1.8, 1: 1.2}.get(lanes, 1)


def _link(sheet: Sheet, machine: Topology, device: Device, x: float, y: float, to: float) -> None:
    if device.narrow:
        sheet.line(x, y, to, y, "can", _thick(device.can.max_width))
    sheet.line(x, y, to, y, "link %s%s" % (device.kind, " faulty" if device.narrow else ""), _thick(device.link.width))
    width, speed = link_words(device.link, device.can)
    middle = to - LINE / 2
    sheet.text(
        middle,
        y - 8,
        " · ".join((width, speed)) if speed else "",
        "small mid%s" % (" warn bold" if device.narrow else ""),
    )
    own = machine.bridges.get(device.way[-1]) if len(device.way) > 1 else None
    redirects = any(b.acs == REDIRECTS for b in machine.upstream_of(device.bdf))
    below = [short(own.bdf)] if own else []
    below += ["ACS ↑"] if redirects and device.kind == GPU else []
    sheet.text(middle, y + 15, "  ".join(below), "mono mid%s" % (" warn" if redirects else " dim"))


def _card(sheet: Sheet, device: Device, x: float, y: float, chosen: Sequence[int]) -> None:
    marked = device.kind == GPU and device.number in chosen
    top = y - CARD_HEIGHT / 2
    sheet.box(
        x, top, CARD_WIDTH, CARD_HEIGHT, "card%s%s" % (" faulty" if device.narrow else "", " chosen" if marked else "")
    )
    sheet.box(x + 5, top + 6, 5, CARD_HEIGHT - 12, device.kind, 2)
    name = "GPU %s" % device.number if device.kind == GPU else device.name or KIND[device.kind]
    sheet.text(x + 18, y - 3, name, "h2", 18)
    sheet.text(x + 18, y + 13, device.bdf, "mono dim")
    sheet.text(x + CARD_WIDTH - 12, y + 13, device.driver or "no driver", "small end dim", 14)
    if marked:
        sheet.text(x + CARD_WIDTH - 12, y - 3, "chosen", "small end bold")


# ---- what it implies


def _matrix(sheet: Sheet, machine: Topology, y: float) -> float:
    numbers = [gpu.number for gpu in machine.gpus if gpu.number is not None]
    if len(numbers) < 2:
        return y
    sheet.text(MARGIN, y, "Ways between GPUs over PCIe", "h2")
    x0, y0, word = MARGIN + 26, y + 30, paths(machine)
    for n, a in enumerate(numbers):
        sheet.text(x0 + n * CELL_WIDTH + CELL_WIDTH / 2, y0 - 6, str(a), "small mid dim")
        sheet.text(x0 - 8, y0 + n * CELL_HEIGHT + 15, str(a), "small end dim")
        for m, b in enumerate(numbers):
            cell = word[a, b]
            sheet.box(
                x0 + m * CELL_WIDTH + 1, y0 + n * CELL_HEIGHT + 1, CELL_WIDTH - 2, CELL_HEIGHT - 2, _HUES[cell], 3
            )
            shown = "" if cell == "X" else cell
            sheet.text(x0 + m * CELL_WIDTH + CELL_WIDTH / 2, y0 + n * CELL_HEIGHT + 15, shown, "mono mid")
    y = y0 + len(numbers) * CELL_HEIGHT + 18
    for used in (w for w in WORDS if w in word.values()):
        sheet.box(MARGIN + 26, y - 11, 14, 14, _HUES[used], 3)
        sheet.text(MARGIN + 48, y, "%s: %s" % (used, WORDS[used]), "small dim")
        y += 17
    return y


def _groups(sheet: Sheet, machine: Topology, y: float) -> float:
    told = groups(machine)
    if not told:
        return y
    left = MARGIN + max(26 + len(machine.gpus) * CELL_WIDTH + 60, 330)
    sheet.text(left, y, "Groups for tensor parallelism", "h2")
    node_of = {gpu.number: gpu.node for gpu in machine.gpus}
    y += 20
    for size in dict.fromkeys(g.size for g in told):
        x = left + 52
        sheet.text(left, y + 20, "TP%d" % size, "bold")
        for group in (g for g in told if g.size == size):
            width = len(group.gpus) * DOT + 10
            across = len(group.nodes) > 1
            if x > left + 52 and x + width > _size(machine) - MARGIN:
                x, y = left + 52, y + 38
            sheet.box(x, y, width, 32, "group%s" % (" faulty" if across else ""), 16)
            for n, gpu in enumerate(group.gpus):
                middle = x + 5 + n * DOT + DOT / 2
                sheet.put("circle", cx=middle, cy=y + 16, r=DOT / 2 - 2, class_="n%d" % ((node_of[gpu] or 0) % 4))
                sheet.text(middle, y + 20, str(gpu), "small mid on")
            if across:
                sheet.text(x + width + 10, y + 20, "crosses nodes %s" % spans(group.nodes), "small warn")
                x += 130
            x += width + 12
        y += 40
    for n, node in enumerate(machine.nodes):
        sheet.put("circle", cx=left + 8 + n * 80, cy=y + 8, r=6, class_="n%d" % (node.id % 4))
        sheet.text(left + 20 + n * 80, y + 12, "node %d" % node.id, "small dim")
    return y + 20


def _legend(sheet: Sheet, machine: Topology, y: float) -> float:
    x = float(MARGIN)
    for lanes in (16, 8, 4):
        sheet.line(x, y - 4, x + 34, y - 4, "link", _thick(lanes))
        sheet.text(x + 42, y, "x%d" % lanes, "small dim")
        x += 76
    if any(device.narrow for device in machine.devices):
        sheet.line(x, y - 4, x + 34, y - 4, "can", _thick(16))
        sheet.line(x, y - 4, x + 34, y - 4, "link faulty", _thick(8))
        sheet.text(x + 42, y, "fewer lanes than both ends can do", "small dim")
        x += 240
    sheet.text(x, y, "A GPU without work lowers its link's speed: no fault.", "small dim")
    return y
