# SPDX-License-Identifier: Apache-2.0
"""The last proof after a change: CUDA starts inside the container and counts the GPUs that it shall have."""

from __future__ import annotations

from typing import List

from ..catalogue import finding
from ..door.host import Host
from ..model import ERROR, FAIL, OK, PROVED, SKIP, Finding, Hint, Refused
from . import inside
from .store import Config

ID = "HT437"
LIBRARY = "dlopen:libcuda.so.1"
SECONDS = 30
"""How long one call may take: eight GPUs without persistence mode need some ten."""


def starts(host: Host, config: Config, gpus: int) -> List[Finding]:
    """Ask once (core/door/child.py: nothing is repaired by asking). gpus: how many CUDA must count."""
    request = {"op": "child", "nodes": [], "calls": [LIBRARY, "cuInit", "cuDeviceGetCount"], "timeout": SECONDS}
    try:
        told = inside.ask(host, config.id, request, SECONDS * 4)
    except inside.NoPython as e:
        return [finding(ID, SKIP, config.subject, "CUDA was not asked: " + e.what)]
    except Refused as e:
        return [finding(ID, ERROR, config.subject, "CUDA could not be asked: " + e.what, hint=Hint(e.way_out, "host"))]
    calls = told.get("calls") if isinstance(told, dict) else None
    if not isinstance(calls, dict):
        return [finding(ID, ERROR, config.subject, "CUDA could not be asked: the answer is none of hosttune's")]
    library, code, count = calls.get(LIBRARY), calls.get("cuInit"), calls.get("cuDeviceGetCount")
    if isinstance(library, dict) and "error" in library:
        return [finding(ID, SKIP, config.subject, "CUDA was not asked: there is no libcuda.so.1 in it")]
    way_out = Hint("hosttune doctor --ct " + config.id, "host", "every node opens inside, so `hosttune lxc sync` has nothing "
                   "left to heal: the doctor names the library, the variable or the GPU, and what mends it", "look")
    if code != 0:
        said = "returns %d" % code if isinstance(code, int) else "gave no answer"
        return [finding(ID, FAIL, config.subject, "cuInit %s inside" % said, have=said, want="0", hint=way_out, proof=PROVED)]
    if count != gpus:
        told_count = str(count) if isinstance(count, int) else "no number"
        return [finding(ID, FAIL, config.subject, "CUDA counts %s GPUs inside, and it shall have %d" % (told_count, gpus),
                        have=told_count, want=str(gpus), hint=way_out, proof=PROVED)]
    return [finding(ID, OK, config.subject, "cuInit returns 0 inside, and CUDA counts %d of %d GPUs" % (gpus, gpus),
                    have=str(gpus), want=str(gpus), proof=PROVED)]
