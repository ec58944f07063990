# SPDX-License-Identifier: Apache-2.0
"""A setting that hosttune never writes: firmware, the kernel command line, or something that others depend on. It is read
and judged, and the edit to make by hand is told in full."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Tuple

from ..door.host import Host
from ..model import REPORT, Knob, Reading, Refused, Step
from . import shape_kept

Edit = Callable[[Host, str, str], Tuple[str, str]]


def report_knob(
    *,
    id: str,
    name: str,
    title: str,
    want: str,
    why: str,
    check: Callable[[str], str],
    read: Callable[[Host], Mapping[str, Reading]],
    by_hand: Edit,
    persists: str,
    absent: Callable[[Host], str] = lambda host: "",
    **more: Any,
) -> Knob:
    """A knob without a step. by_hand(host, subject, want) -> (file or place, a line to paste). absent(host) -> why there is
    nothing to read on this machine. persists: where the value is kept: "firmware", "kernel command line"."""

    def step(host: Host, subject: str, have: str, want: str) -> Step:
        where, line = by_hand(host, subject, want)
        raise Refused("hosttune only reports it", where, line)

    def skip(host: Host) -> str:
        return shape_kept.of_the_host(host) or absent(host)

    more.setdefault("meets", shape_kept.meets)
    return Knob(id=id, name=name, title=title, why=why, want=want, read=read, step=step, check=check, skip=skip,
                recommend=REPORT, persists=persists, **more)  # fmt: skip
