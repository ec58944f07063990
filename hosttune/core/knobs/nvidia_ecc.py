# SPDX-License-Identifier: Apache-2.0
"""Whether a change of ECC waits for a GPU's next reset or the next boot: then memory size and speed change by themselves."""

from __future__ import annotations

from typing import Dict

from ..door.host import Host
from ..gpu import nvidia_smi, own
from ..gpu.nvidia_smi import Row
from ..model import REPORT, Knob, Reading, Refused, Step


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: "Enabled", or "Enabled, Disabled after a reset"} of each GPU."""
    return nvidia_smi.each(host, one)


def one(row: Row) -> Reading:
    """Of one GPU."""
    now, pending = nvidia_smi.told(row, "ecc.mode.current"), nvidia_smi.told(row, "ecc.mode.pending")
    if not now:
        return Reading(skip="it has no ECC")
    return Reading(now if pending in (now, "") else "%s, %s after a reset" % (now, pending))


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written: it needs a reset of the GPU."""
    flag = "1" if have.startswith("Enabled") else "0"
    raise Refused(
        "it takes effect at the next reset or boot",
        subject,
        "nvidia-smi -i %s -e %s  # keeps it as it is; a reboot changes it" % (subject, flag),
    )


WANT = "nothing pending"
NVIDIA_ECC = Knob(
    id="HT342",
    name="nvidia-ecc",
    title="ECC",
    want=WANT,
    read=read,
    step=step,
    check=lambda want: "" if want == WANT else "%s cannot be wanted: %s" % (want, WANT),
    skip=own.skip,
    recommend=REPORT,
    meets=lambda have, want: "," not in have,
    after_driver=True,
    starts="nvidia-smi",
    why="a GPU has another amount of memory, or another speed, after the next boot, and nobody remembers why",
    cost="two benchmarks over a reboot that do not compare; a model that no longer fits",
    evidence="nvidia-smi manual",
    persists="the GPU itself",
)
