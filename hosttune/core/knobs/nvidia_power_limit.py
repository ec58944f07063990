# SPDX-License-Identifier: Apache-2.0
"""The power limit of each GPU in watts, only where somebody pins it. Lost when the driver puts the GPU down, and at a reboot."""

from __future__ import annotations

from typing import Dict

from ..door.host import Host
from ..gpu import nvidia_smi, own
from ..gpu.nvidia_smi import Row
from ..model import OPT_IN, Knob, Reading, Refused, Step
from .shape_kept import whole_number


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: watts} of each GPU."""
    return nvidia_smi.each(host, one)


def one(row: Row) -> Reading:
    """Of one GPU, with its range."""
    limit = nvidia_smi.told(row, "power.limit")
    if not limit:
        return Reading(skip="its power limit is not told")
    return Reading(
        _watts(limit), where="possible: %s to %s W" % (_watts(row["power.min_limit"]), _watts(row["power.max_limit"]))
    )


def _watts(text: str) -> str:
    """ "450" of "450.00"."""
    try:
        return "%g" % float(text)
    except ValueError:
        return text


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """nvidia-smi -pl. Refused outside of what the card takes."""
    row = nvidia_smi.ask(host).get(subject, {})
    low, high = (row.get("power.min_limit", ""), row.get("power.max_limit", ""))
    try:
        possible = float(low) <= float(want) <= float(high)
    except ValueError:
        possible = True  # the card does not tell; the read-back does
    if not possible:
        way_out = "nvidia-smi -q -d POWER -i %s  # want a value in that range" % subject
        raise Refused("the card takes %s to %s W" % (_watts(low), _watts(high)), subject, way_out)
    argv, undo = (nvidia_smi.set_one(subject, "-pl", watts) for watts in (want, have))
    return Step(ID, subject, "run", "%s power limit" % subject, have, want, argv, undo)


ID = "HT343"
NVIDIA_POWER_LIMIT = Knob(
    id=ID,
    name="nvidia-power-limit",
    title="power limit in watts",
    want="",
    read=read,
    step=step,
    check=whole_number(1, 2000),
    skip=own.skip,
    recommend=OPT_IN,
    after_driver=True,
    starts="nvidia-smi",
    why="a limit saves watts and heat, and costs speed where the GPU is the bottleneck: only its owner can weigh that",
    cost="measured on one card: 300 W cost 4 % at low concurrency and up to 30 % at high; 450 W was close to full",
    evidence="a community sweep of one model on one card: measure yours",
    persists="boot unit, with nvidia-persistence: it is lost when the driver puts the GPU down",
    if_ignored="the driver put the GPU down again: hosttune apply nvidia-persistence",
)
