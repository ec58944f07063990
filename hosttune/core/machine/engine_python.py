# SPDX-License-Identifier: Apache-2.0
"""What the Python of an engine's environment says of CUDA: PyTorch's version, its runtime, the driver it sees, its own words."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from ..door.host import Host
from ..model import Refused

TIMEOUT = 120
"""Seconds. Importing PyTorch from a cold disk takes tens of them."""
SCRIPT = """\
import json, sys
told = {"python": sys.version.split()[0]}
try:
    import torch
    told.update(torch=torch.__version__, runtime=torch.version.cuda or "")
    try:
        told["driver"] = torch._C._cuda_getDriverVersion()
    except Exception:
        pass
    try:
        told["gpus"] = torch.cuda.device_count()
        torch.zeros(1).cuda()
    except Exception as e:
        told["error"] = (str(e).strip().splitlines() or [type(e).__name__])[0]
except ImportError as e:
    told["missing"] = str(e)
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Torch:
    """torch "": it is not there, and `error` says why. runtime, driver: CUDA versions ("12.8"), "" when not told. gpus: how many
    it counts. error: its own words when a tensor does not get onto a GPU."""

    path: str
    torch: str = ""
    runtime: str = ""
    driver: str = ""
    gpus: int = 0
    error: str = ""


def look(host: Host, path: str) -> Torch:
    """Run that interpreter. Refused when it is none, or does not answer."""
    ran = host.run((path, "-c", SCRIPT), timeout=TIMEOUT)
    told = _answer(ran.out)
    if told is None:
        why = (
            "no answer in %d s" % TIMEOUT
            if ran.timeout
            else (ran.err.strip().splitlines() or ["exit code %d" % ran.rc])[-1]
        )
        raise Refused(
            "this Python does not answer: %s" % why[:200], path, "%s -c %s" % (shlex.quote(path), "'import torch'")
        )
    number, count = told.get("driver"), told.get("gpus")
    driver = "%d.%d" % (number // 1000, number % 1000 // 10) if isinstance(number, int) and number else ""
    return Torch(path, str(told.get("torch") or ""), str(told.get("runtime") or ""), driver,
                 count if isinstance(count, int) else 0, str(told.get("error") or told.get("missing") or ""))  # fmt: skip


def _answer(out: str) -> Optional[Mapping[str, Any]]:
    """The last line that is an answer: PyTorch and what it imports may print, too."""
    for line in reversed(out.splitlines()):
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(told, dict) and ("torch" in told or "missing" in told):
            return told
    return None
