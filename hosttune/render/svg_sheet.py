# SPDX-License-Identifier: Apache-2.0
"""A sheet to draw an SVG on: a few shapes, text made fit to be shown, and one look for light and dark."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from .visible import visible

STYLE = """
svg { background: #ffffff; font-family: system-ui, "Segoe UI", Roboto, sans-serif; font-size: 12px; fill: #1b2430 }
.h1 { font-size: 20px; font-weight: 600 } .h2 { font-size: 14px; font-weight: 600 } .dim { fill: #5c6b7c }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, monospace; font-size: 11px }
.small { font-size: 11px } .mid { text-anchor: middle } .end { text-anchor: end } .bold { font-weight: 600 }
.socket { fill: #f4f6f9; stroke: #d3dae3 } .node { fill: #ffffff; stroke: #c3ccd8 }
.port { fill: #e8edf3; stroke: #b4bfcc } .switch { fill: #e4e9fb; stroke: #98a7df }
.card { fill: #ffffff; stroke: #b4bfcc } .chosen { stroke: #1f6feb; stroke-width: 2.5 }
.faulty { stroke: #c77700; stroke-width: 2 }
.gpu { fill: #2f9e6e } .nic { fill: #3b82c4 } .nvme { fill: #8a63c9 }
.link { stroke: #2f9e6e; stroke-linecap: butt } .link.nic { stroke: #3b82c4 } .link.nvme { stroke: #8a63c9 }
.link.faulty { stroke: #c77700 } .can { stroke: #f0dcb8 } .spine { stroke: #8593a3; fill: none; stroke-width: 2 }
.complex { fill: #8593a3 }
.between { stroke: #c77700; stroke-width: 5 } .warn { fill: #a65f00 } .band { fill: #fff4df; stroke: #e3b565 }
.near { fill: #d3f0e2 } .mine { fill: #d9ebf7 } .far { fill: #fdebc8 } .self { fill: #eef1f5 } .untold { fill: #f3dff0 }
.n0 { fill: #2f7f9e } .n1 { fill: #7a5bb5 } .n2 { fill: #a8574a } .n3 { fill: #5e8a2c } .on { fill: #ffffff; font-weight: 600 }
.group { fill: none; stroke: #b4bfcc } .group.faulty { stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
svg { background: #11161d; fill: #e4e9ef } .dim { fill: #94a3b4 } .socket { fill: #171e27; stroke: #2c3643 }
.node { fill: #1c2530; stroke: #35424f } .port { fill: #2a3542; stroke: #465463 } .switch { fill: #28304f; stroke: #5567ad }
.card { fill: #141b23; stroke: #465463 } .chosen { stroke: #6ea8ff } .faulty { stroke: #f0a53a } .can { stroke: #5b4722 }
.link.faulty, .between { stroke: #f0a53a } .warn { fill: #f0b45c } .band { fill: #33270f; stroke: #7a5c22 }
.near { fill: #1d4736 }
.mine { fill: #1d3b50 } .far { fill: #4c3a15 } .self { fill: #232c37 } .untold { fill: #442a41 } .group { stroke: #465463 }
}
"""


@dataclass
class Sheet:
    """What is drawn on, and the size that it comes to."""

    root: ET.Element = field(default_factory=lambda: ET.Element("svg", xmlns="http://www.w3.org/2000/svg"))

    def put(self, tag: str, **attributes: object) -> ET.Element:
        names = {name.rstrip("_").replace("_", "-"): _number(value) for name, value in attributes.items()}
        return ET.SubElement(self.root, tag, names)

    def box(self, x: float, y: float, width: float, height: float, look: str, round_: float = 6) -> ET.Element:
        return self.put("rect", x=x, y=y, width=width, height=height, rx=round_, class_=look)

    def line(self, x1: float, y1: float, x2: float, y2: float, look: str, width: float = 0) -> None:
        more = {"stroke_width": width} if width else {}
        self.put("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=look, **more)

    def text(self, x: float, y: float, words: str, look: str = "", limit: int = 0) -> None:
        shown = visible(words)
        if limit and len(shown) > limit:
            shown = shown[: limit - 1] + "…"
        self.put("text", x=x, y=y, **({"class_": look} if look else {})).text = shown


def _number(value: object) -> str:
    return "%g" % value if isinstance(value, (int, float)) else str(value)
