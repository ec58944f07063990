# SPDX-License-Identifier: Apache-2.0
"""PCIe links on the way from a function to its root port, as sysfs tells them: no root and no config space needed.

Documentation/ABI/testing/sysfs-bus-pci. What a link can is what its weaker end can. Lanes stay as they are at idle; the
speed of an idle GPU's own link goes down to 2.5 GT/s by design.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Callable, List, Optional

from ..door.host import Host, read_or_none
from . import bus


@dataclass(frozen=True)
class End:
    """What one end of a link tells. width in lanes, speed in GT/s, now and at most; 0 for what it does not tell."""

    width: int = 0
    speed: float = 0
    max_width: int = 0
    max_speed: float = 0


@dataclass(frozen=True)
class Link:
    """The link of `bdf` to the port above it; port "" where none can be seen."""

    bdf: str
    port: str
    below: End
    above: End

    @property
    def lanes(self) -> int:
        """What both ends can."""
        return int(weaker(self.below.max_width, self.above.max_width))

    @property
    def speed(self) -> float:
        """GT/s that both ends can."""
        return weaker(self.below.max_speed, self.above.max_speed)


def links(host: Host, bdf: str) -> List[Link]:
    """Every link from here to the root port, nearest first. A switch has a link above and below it, and none inside it."""
    chain = [bdf] + bus.ports_above(host, bdf)
    pairs = [(chain[n], chain[n + 1] if n + 1 < len(chain) else "") for n in range(0, len(chain), 2)]
    read = partial(read_or_none, host)
    return [Link(low, high, end(read, low), end(read, high) if high else End()) for low, high in pairs]


def end(read: Callable[[str], Optional[str]], bdf: str) -> End:
    """One end, by what `read` gives of its files in sysfs (None or "" for what cannot be read)."""
    width, speed, max_width, max_speed = (
        _number(read("%s/%s/%s" % (bus.DEVICES, bdf, name)))
        for name in ("current_link_width", "current_link_speed", "max_link_width", "max_link_speed")
    )
    return End(_lanes(width), speed, _lanes(max_width), max_speed)


def weaker(one: float, other: float) -> float:
    """What both ends can do; one that does not tell does not count."""
    return min(one or other, other or one)


def _number(text: Optional[str]) -> float:
    """Of "32.0 GT/s PCIe", "16", "Unknown"."""
    found = re.match(r"\d+(\.\d+)?", text or "")
    return float(found.group()) if found else 0


def _lanes(width: float) -> int:
    return int(width) if width <= 32 else 0  # 255: the kernel's "unknown", also of a function that fell off the bus
