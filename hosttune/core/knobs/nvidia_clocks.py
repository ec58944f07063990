# SPDX-License-Identifier: Apache-2.0
"""The SM clock that somebody has pinned (nvidia-smi -lgc), in MHz. Never written: no call of the driver reads a lock back, and
hosttune writes nothing that it cannot read back. The clock of a GPU that computes shows whether the pin holds."""

from __future__ import annotations

from typing import Dict

from ..door.host import Host
from ..gpu import nvidia_smi, own
from ..gpu.nvidia_smi import Row
from ..model import OPT_IN, Knob, Reading, Refused, Step
from .shape_kept import whole_number


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: MHz} of each GPU that computes; an idle one is a skip."""
    return nvidia_smi.each(host, one)


def one(row: Row) -> Reading:
    """Of one GPU."""
    clock, most = nvidia_smi.told(row, "clocks.sm"), nvidia_smi.told(row, "clocks.max.sm")
    if not clock:
        return Reading(skip="its clock is not told")
    if nvidia_smi.told(row, "utilization.gpu") in ("", "0"):
        return Reading(clock, skip="SM clock is %s MHz; an idle GPU lowers it: look while it computes" % clock)
    return Reading(clock, where="at most: %s MHz" % most if most else "")


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written."""
    raise Refused(
        "no call of the driver reads a lock back", subject, "nvidia-smi -i %s -lgc %s,%s" % (subject, want, want)
    )


NVIDIA_CLOCKS = Knob(
    id="HT344",
    name="nvidia-clocks",
    title="SM clock in MHz",
    want="",
    read=read,
    step=step,
    check=whole_number(1, 9999),
    skip=own.skip,
    recommend=OPT_IN,
    after_driver=True,
    starts="nvidia-smi",
    passing=True,
    why="a pinned clock makes runs alike; pinned low it is slow, pinned high it throttles",
    cost="runs that differ by temperature and power",
    evidence="nvidia-smi manual",
    persists="nowhere: it is lost when the driver puts the GPU down",
)
