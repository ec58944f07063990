# SPDX-License-Identifier: Apache-2.0
"""What the driver alone knows of each GPU, asked through nvidia-smi: one call for all GPUs and all that hosttune wants to know.

nvidia-smi loads NVML, which may load the driver and make or mend device nodes. So this is asked only when somebody asks for it
(`hosttune check --nvml`, a knob by its name, a want in the profile), never by a check of everything.
"""

from __future__ import annotations

from typing import Callable, Dict, Mapping, Tuple

from ..door.host import Host
from ..model import Reading, Refused
from ..pci import bus

FIELDS = (
    "pci.bus_id", "compute_mode", "mig.mode.current", "mig.mode.pending", "ecc.mode.current", "ecc.mode.pending",
    "power.limit", "power.min_limit", "power.max_limit", "clocks.sm", "clocks.max.sm", "utilization.gpu",
)  # fmt: skip
ASK = ("nvidia-smi", "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits")
ABSENT = ("[N/A]", "[Not Supported]", "N/A", "")
"""What nvidia-smi says of what a GPU does not have; releases differ."""

Row = Mapping[str, str]


def ask(host: Host) -> Dict[str, Row]:
    """{bdf: {field: text}} of every GPU that the driver has. Raises Refused with nvidia-smi's own words."""
    ran = host.run(ASK)
    if ran.rc == 127:
        raise Refused("nvidia-smi is not installed", "nvidia-smi")
    if ran.rc or ran.timeout:
        words = (ran.err or ran.out).strip().splitlines() or ["exit code %d" % ran.rc]
        why = "gave no answer in %g s" % ran.timeout if ran.timeout else words[0]
        raise Refused("nvidia-smi: " + why, "nvidia-smi", "hosttune doctor")
    found: Dict[str, Row] = {}
    for line in ran.out.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(FIELDS):
            row = dict(zip(FIELDS, values))
            found[bdf_of(row["pci.bus_id"])] = row
    return found


def bdf_of(text: str) -> str:
    """nvidia-smi writes a domain of eight digits in capitals, sysfs one of four in small letters."""
    domain, _, rest = text.lower().partition(":")
    return "%s:%s" % (domain[-4:] if domain.startswith("0000") else domain, rest)


def each(host: Host, one: Callable[[Row], Reading]) -> Dict[str, Reading]:
    """{bdf: Reading} of every GPU function: what `one` makes of its row, or why there is none."""
    try:
        rows, why = ask(host), ""
    except Refused as e:
        rows, why = {}, e.what
    assigned = bus.vm_assigned(host)
    found = {}
    for gpu in bus.gpus(host):
        owner = bus.owner(gpu, assigned)
        row = rows.get(gpu.bdf)
        found[gpu.bdf] = (
            Reading(skip=owner) if owner
            else one(row) if row
            else Reading(error=why or "nvidia-smi does not list this GPU: hosttune doctor")
        )  # fmt: skip
    return found


def told(row: Row, field: str) -> str:
    """A field's text, "" for what this GPU does not have."""
    return "" if row[field] in ABSENT else row[field]


def set_one(bdf: str, *words: str) -> Tuple[str, ...]:
    """nvidia-smi for one GPU."""
    return ("nvidia-smi", "-i", bdf, *words)
