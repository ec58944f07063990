# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU is split into instances (MIG), now and after its next reset. A split GPU has no peer-to-peer."""

from __future__ import annotations

from typing import Dict

from ..door.host import Host
from ..gpu import nvidia_smi, own
from ..gpu.nvidia_smi import Row
from ..model import REPORT, Knob, Reading, Refused, Step


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: "Disabled", or "Disabled, Enabled after a reset"} of each GPU."""
    return nvidia_smi.each(host, one)


def one(row: Row) -> Reading:
    """Of one GPU."""
    now, pending = nvidia_smi.told(row, "mig.mode.current"), nvidia_smi.told(row, "mig.mode.pending")
    if not now:
        return Reading(skip="it cannot be split")
    return Reading(now if pending in (now, "") else "%s, %s after a reset" % (now, pending))


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written: it takes every instance and what runs in it away."""
    flag = "1" if want == "Enabled" else "0"
    raise Refused(
        "it needs a reset of the GPU and destroys its instances", subject, "nvidia-smi -i %s -mig %s" % (subject, flag)
    )


MODES = ("Disabled", "Enabled")
NVIDIA_MIG = Knob(
    id="HT341",
    name="nvidia-mig",
    title="MIG",
    want="Disabled",
    read=read,
    step=step,
    check=lambda want: "" if want in MODES else "%s is none of %s" % (want, ", ".join(MODES)),
    skip=own.skip,
    recommend=REPORT,
    after_driver=True,
    starts="nvidia-smi",
    why="instances of a split GPU cannot reach other GPUs: no tensor parallel over PCIe peer-to-peer",
    cost="an engine that sees fewer GPUs, or one without peers",
    evidence="nvidia-smi manual, MIG user guide",
    persists="the GPU itself",
)
