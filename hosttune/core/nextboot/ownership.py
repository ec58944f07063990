# SPDX-License-Identifier: Apache-2.0
"""Who will have the GPUs after the next boot (HT705): nvidia, or vfio-pci or nouveau, which come first if nothing bars them."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Tuple

from ..catalogue import finding
from ..configured import modprobe
from ..door.host import Host, list_or_empty
from ..model import FAIL, FITS, OK, PROVED, WARN, Finding, Hint
from ..pci import bus
from .kernel import NextKernel


def judge(host: Host, kernel: NextKernel) -> List[Finding]:
    """HT705, once for vfio-pci and once for nouveau; nothing without a GPU."""
    gpus = bus.gpus(host)
    if not gpus:
        return []
    lines = modprobe.lines(host)
    claims = _vfio(lines, kernel.words or ())
    taken = [(gpu.bdf, claims[_id(gpu)]) for gpu in gpus if gpu.driver == "nvidia" and _id(gpu) in claims]
    if taken:
        return [
            finding(
                "HT705",
                FAIL,
                "%s%s" % (taken[0][0], _more(taken)),
                "nvidia has it now; vfio-pci takes it at the next boot",
                have="nvidia",
                want="nvidia",
                proof=PROVED,
                evidence=(taken[0][1],),
                hint=Hint(
                    "grep -rn ids= /etc/modprobe.d   # take the id out, then update-initramfs -u",
                    "host",
                    "virtual machines that use such a GPU lose it",
                    "look",
                ),
            )
        ]
    nouveau = "nouveau" if _has_nouveau(host, kernel) else ""
    if nouveau and not _kept_away(lines, kernel.words or ()):
        return [
            finding(
                "HT705",
                WARN,
                "GPUs",
                "nothing keeps nouveau from taking them before nvidia does",
                have="not blocked",
                want="blacklist nouveau",
                proof=FITS,
                decide="lspci -k -d 10de:   # after the next boot",
                evidence=(
                    "/lib/modules/%s/kernel/drivers/gpu/drm/nouveau is there" % kernel.release,
                    "%s: no blacklist nouveau" % modprobe.FOLDERS[0],
                ),
                hint=Hint(
                    "echo blacklist nouveau > /etc/modprobe.d/blacklist-nouveau.conf && update-initramfs -u -k %s"
                    % kernel.release,
                    "host",
                    "nothing is restarted",
                ),
            )
        ]
    return [finding("HT705", OK, "GPUs", "no other driver claims those that nvidia has now")]


def _more(taken: Sequence[Tuple[str, str]]) -> str:
    return " and %d more" % (len(taken) - 1) if len(taken) > 1 else ""


def _id(gpu: bus.Gpu) -> str:
    return "%s:%s" % (bus.NVIDIA[2:], gpu.device[2:])


def _vfio(lines: Sequence[modprobe.Line], words: Sequence[str]) -> Dict[str, str]:
    """{vendor:device: where it is given to vfio-pci}."""
    found: Dict[str, str] = {}
    for line in lines:
        if line.words[:2] == ("options", "vfio_pci"):
            _claim(found, " ".join(line.words[2:]), line.place)
    for word in words:
        if word.startswith(("vfio-pci.", "vfio_pci.")):
            _claim(found, word[len("vfio-pci.") :], "the next kernel's command line: " + word)
    return found


def _claim(found: Dict[str, str], text: str, place: str) -> None:
    for ids in re.findall(r"\bids=(\S+)", text):
        for one in ids.strip('"').split(","):
            found.setdefault(":".join(one.lower().split(":")[:2]), place)


def _has_nouveau(host: Host, kernel: NextKernel) -> bool:
    return bool(list_or_empty(host, "/lib/modules/%s/kernel/drivers/gpu/drm/nouveau" % kernel.release))


def _kept_away(lines: Sequence[modprobe.Line], words: Sequence[str]) -> bool:
    by_line = any(
        line.words[:2] == ("blacklist", "nouveau") or line.words[:2] in (("install", "nouveau"), ("alias", "nouveau"))
        for line in lines
    )
    return by_line or any(
        re.match(r"(rd\.driver\.blacklist|modprobe\.blacklist)=(.*,)?nouveau(,|\Z)", word)
        or word in ("nouveau.modeset=0", "nouveau.blacklist=1")
        for word in words
    )
