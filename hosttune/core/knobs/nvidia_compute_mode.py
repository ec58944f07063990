# SPDX-License-Identifier: Apache-2.0
"""Whether several programs may use a GPU at once: Default, Exclusive_Process or Prohibited. A reboot sets it to Default."""

from __future__ import annotations

from typing import Dict

from ..door.host import Host
from ..gpu import nvidia_smi, own
from ..model import REPORT, Knob, Reading, Step

MODES = ("Default", "Exclusive_Process", "Prohibited")


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: mode} of each GPU."""
    return nvidia_smi.each(host, lambda row: Reading(nvidia_smi.told(row, "compute_mode")))


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """nvidia-smi -c; waits while the GPU computes."""
    wait(host, subject)
    argv = nvidia_smi.set_one(subject, "-c", want.upper())
    undo = nvidia_smi.set_one(subject, "-c", have.upper()) if have in MODES else ()
    return Step(ID, subject, "run", "%s compute mode" % subject, have, want, argv, undo)


def wait(host: Host, subject: str) -> None:
    """Refused while the GPU computes."""
    own.defer_while_computing(host, subject, NAME)


ID, NAME = "HT340", "nvidia-compute-mode"
NVIDIA_COMPUTE_MODE = Knob(
    id=ID,
    name=NAME,
    title="compute mode",
    want="Default",
    read=read,
    step=step,
    check=lambda want: "" if want in MODES else "%s is none of %s" % (want, ", ".join(MODES)),
    skip=own.skip,
    recommend=REPORT,
    wait=wait,
    after_driver=True,
    starts="nvidia-smi",
    why="an engine whose helpers open the GPU too, or a second engine beside it, needs Default",
    cost="a start that ends with: all CUDA-capable devices are busy or unavailable",
    evidence="nvidia-smi manual",
    persists="boot unit: a reboot sets it to Default",
)
