# SPDX-License-Identifier: Apache-2.0
"""Which GPUs an engine sees, and which CPUs go with them.

CUDA counts the GPUs that the engine's machine has, in PCI order when told so; a minor (/dev/nvidiaN) is not that number in
a container that has only some of them. Numbers, not UUIDs: vLLM turns each entry of CUDA_VISIBLE_DEVICES into an int.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from ..core.door.host import Host, read_or_none
from ..core.gpu import gpus
from ..core.model import Refused
from ..core.pci import bus
from ..core.wanted.profile import Profile
from .declare import Engine


@dataclass(frozen=True)
class Devices:
    """visible: value of CUDA_VISIBLE_DEVICES, None to leave it alone. bdfs: the GPUs, where they are known. node and cpus:
    the NUMA node that all of them lie on, else None and "". told: a line for each GPU, for the unit's comment."""

    visible: str | None = None
    bdfs: tuple[str, ...] = ()
    node: int | None = None
    cpus: str = ""
    told: tuple[str, ...] = ()


def devices(host: Host, engine: Engine, profile: Profile) -> Devices:
    """What the declaration's `gpus` means on this host now. Refused when a GPU is not there, or fewer than tp."""
    here = "engines.%s.gpus" % engine.name
    if engine.gpus == "none":
        return Devices("", told=("no GPU",))
    if engine.gpus.startswith("GPU-"):
        return Devices(engine.gpus)
    try:
        minors, uuids = gpus.minors(host), gpus.uuids(host)
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.EACCES):
            raise
        minors, uuids = {}, {}
    container = profile.containers.get(engine.ct_id) if engine.ct_id else None
    there = gpus.chosen(host, container.gpus) if container else None
    seen = sorted(bdf for bdf, minor in minors.items() if there is None or minor in there)
    wanted = gpus.chosen(host, engine.gpus)
    if wanted is None:
        chosen = seen
    else:
        by_minor = {minor: bdf for bdf, minor in minors.items()}
        absent = [n for n in wanted if by_minor.get(n) not in seen]
        if absent:
            raise Refused(
                "/dev/nvidia%d is none of the %d GPUs that %s has" % (absent[0], len(seen), engine.place),
                here,
                "hosttune doctor shows which there are",
            )
        chosen = sorted(by_minor[n] for n in wanted)
    if chosen and engine.tp > len(chosen):
        raise Refused(
            "tp is %d, but only %d GPUs are chosen" % (engine.tp, len(chosen)), here, "raise gpus, or lower tp"
        )
    node, cpus = _node(host, chosen) if engine.affinity == "auto" else (None, "")
    visible = None if wanted is None else ",".join(str(seen.index(bdf)) for bdf in chosen)
    told = tuple("GPU %d: %s /dev/nvidia%d %s" % (seen.index(b), b, minors[b], uuids.get(b, "")) for b in chosen)
    return Devices(visible, tuple(chosen), node, cpus, tuple(line.strip() for line in told))


def _node(host: Host, bdfs: list[str]) -> tuple[int | None, str]:
    """The one node of these GPUs and its CPUs; none when they lie on several, or the machine has only one."""
    nodes = {gpu.numa_node for gpu in bus.gpus(host) if gpu.bdf in bdfs}
    if len(nodes) != 1 or not bdfs or (read_or_none(host, "/sys/devices/system/node/possible") or "0").strip() == "0":
        return None, ""
    (node,) = nodes
    cpus = (read_or_none(host, "/sys/devices/system/node/node%d/cpulist" % node) or "").strip()
    return (node, cpus) if node >= 0 and cpus else (None, "")
