# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a declaration means: "all", those of a NUMA node ("numa:0"), or a list of minors, PCI addresses and UUIDs."""

from __future__ import annotations

import errno
import re
from typing import Dict, Optional, Tuple

from ..door.host import Host, list_or_empty
from ..model import Refused
from ..pci import bus

FOLDER = "/proc/driver/nvidia/gpus"


def minors(host: Host) -> Dict[str, int]:
    """{bdf: Device Minor} of each GPU that the driver has; minor N is /dev/nvidiaN. Empty without the driver."""
    out = {}
    for bdf in list_or_empty(host, FOLDER):
        found = re.search(r"^Device Minor:\s*(\d+)", host.read("%s/%s/information" % (FOLDER, bdf)), re.MULTILINE)
        if found:
            out[bdf] = int(found.group(1))
    return out


def uuids(host: Host) -> Dict[str, str]:
    """{bdf: GPU UUID}; a GPU that was not used since the boot shows question marks, and is left out."""
    out = {}
    for bdf in list_or_empty(host, FOLDER):
        found = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", host.read("%s/%s/information" % (FOLDER, bdf)), re.MULTILINE)
        if found:
            out[bdf] = found.group(1)
    return out


def chosen(host: Host, gpus: str) -> Optional[Tuple[int, ...]]:
    """The minors that a declaration means, None for all. Refused for a node without GPUs, and for an address or UUID that
    the driver does not have; a minor is taken as it is."""
    if gpus == "all":
        return None
    if not gpus.startswith("numa:"):
        return tuple(sorted({_minor(host, word) for word in gpus.split(",")}))
    node, by_bdf = int(gpus[len("numa:") :]), minors(host)
    here = tuple(sorted(by_bdf[gpu.bdf] for gpu in bus.gpus(host) if gpu.numa_node == node and gpu.bdf in by_bdf))
    if not here:
        raise Refused(
            "no GPU that the driver has lies on NUMA node %d" % node,
            "gpus: " + gpus,
            "nvidia-smi topo -m shows the nodes",
        )
    return here


def _minor(host: Host, word: str) -> int:
    """The minor of one GPU by its minor, PCI address (the domain may be left out) or UUID."""
    if word.isdigit():
        return int(word)
    by_bdf = minors(host)
    ids = {uuid: bdf for bdf, uuid in uuids(host).items()} if word.startswith("GPU-") else {
        name: bdf for bdf in by_bdf for name in (bdf, bdf.split(":", 1)[1])}
    bdf = ids.get(word if word in ids else word.lower(), "")
    if bdf in by_bdf:
        return by_bdf[bdf]
    full = word.lower() if word.count(":") == 2 else "0000:" + word.lower()
    held = next((gpu.driver for gpu in bus.gpus(host) if gpu.bdf == full), None)
    what = "the driver has no GPU %s" % word if held is None else "%s is bound to %s, not to nvidia" % (
        word, held or "no driver")
    raise Refused(what, "gpus: " + word, "GPUs of the driver: " + (", ".join(sorted(ids)) or "none; nvidia-smi -L"))


def declared(host: Host, gpus: str) -> Optional[int]:
    """How many GPUs a declaration means on this host; None when it cannot be told (no driver)."""
    try:
        which = chosen(host, gpus)
        return len(which) if which is not None else len(minors(host)) or None
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.EACCES):
            return None
        raise
