# SPDX-License-Identifier: Apache-2.0
"""Ask the core inside a container: the zip goes in through standard input, nothing is written there.

`pct exec` on Proxmox VE, `lxc-attach` elsewhere. Not `pct push`: it exits 0 even when the copy failed, and takes the
config lock; not through paths below the container's root, which its owner controls.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping

from .. import __main__ as served
from .. import corezip
from ..door.host import Host, Unrecorded
from ..model import Refused
from .store import PVE_FOLDER

PCT = ("/usr/sbin/pct", "/usr/bin/pct")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

ANSWER_LIMIT = 8 << 20
"""Characters. A survey of a container with eight GPUs is some 40 thousand."""


class NoPython(Refused):
    """The container has no Python 3.9 or newer: what the host can see still stands (HT904)."""


def enter(host: Host, ct_id: str) -> List[str]:
    """The words before a command that run it inside, without the caller's environment: it may hold secrets, which the root
    of the container could then read, and what it says of CUDA is not true of the container. `pct exec` would hand it on.

    Whether Proxmox VE has it is seen by its file: `pct status` would say the same, in most of a second."""
    if ct_id.isdigit() and _there(host, "%s/%s.conf" % (PVE_FOLDER, ct_id)) and any(_there(host, path) for path in PCT):
        return ["env", "-i", "PATH=" + SEARCH_PATH, "LC_ALL=C.UTF-8", "pct", "exec", ct_id, "--"]
    return ["lxc-attach", "-n", ct_id, "--clear-env", "--set-var", "PATH=" + SEARCH_PATH, "--"]


def _there(host: Host, path: str) -> bool:
    try:
        host.lstat(path)
    except (OSError, Unrecorded):
        return False
    return True


def ask(host: Host, ct_id: str, request: Mapping[str, Any], timeout: float = 120) -> Any:
    """The `result` of one request (core/__main__.py). Raises NoPython, or Refused with what the other side said.

    One interpreter over there serves all requests of this door: starting it costs more than most answers.
    """
    entered = enter(host, ct_id)
    ran = host.converse([*entered, *corezip.argv()], corezip.opening(), corezip.line(request), timeout)
    where = "ct:" + ct_id
    if ran.timeout:
        raise Refused(
            "gave no answer within %g s" % timeout, where, "hosttune doctor inside the container names the step"
        )
    told = _last_json(ran.out) if len(ran.out) <= ANSWER_LIMIT else None
    if told is None and (ran.rc in (126, 127) or "python3" in ran.err):
        raise NoPython(
            "no python3 inside", where, "install it there (apt install python3), or look from inside by hand"
        )
    if told is None and ran.rc == 0:
        raise Refused(
            "its python3 gave %d characters that are no answer of hosttune" % len(ran.out),
            where,
            "%s %s -- python3 --version" % ("pct exec" if "pct" in entered else "lxc-attach -n", ct_id),
        )
    if told is None:
        raise Refused(
            "could not be entered: %s" % (ran.err.strip().splitlines() or ["exit code %d" % ran.rc])[-1][:200],
            where,
            "lxc-info -n %s" % ct_id,
        )
    if "result" not in told:
        error = told.get("error")
        what = str(error.get("what", "") if isinstance(error, dict) else "")[:200]
        # A way out of its own is left aside: its root must not put commands into the mouth of the host's doctor.
        if re.match(r"Python is \d+\.\d+", what):
            raise NoPython(what, where, "install Python 3.9 or newer in it")
        raise Refused("it answered: " + (what or "nothing that hosttune says"), where, "hosttune doctor inside the container")
    return told["result"]


def _last_json(text: str) -> Any:
    """The answer is the last line; a login banner or a warning may stand before it."""
    for line in reversed(text.strip().splitlines()):
        if line.startswith("{"):
            try:
                answer: Dict[str, Any] = json.loads(line)
            except (ValueError, RecursionError):
                return None
            return answer
    return None


OPERATIONS = served.OPS
"""Named here so that the whole service travels wherever this module does (Ansible bundles what is imported)."""
