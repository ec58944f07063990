# SPDX-License-Identifier: Apache-2.0
"""Restart a container in the way of whoever starts it: Proxmox VE, its high availability, or plain LXC."""

from __future__ import annotations

import shlex
import time
from typing import List, Optional, Sequence, Tuple

from ..catalogue import finding
from ..door.host import Host
from ..model import FAIL, Action, Finding, Hint
from .document import effective_keys
from .store import Config

NAME = "restart"
TIMEOUT = 180
"""Seconds for one command, and for the HA manager to have done what it was asked: its own limit for a stop is 60."""


RESTARTS = "restarts the container: all that runs in it ends"


def costs(lost: Optional[Sequence[str]] = None) -> str:
    """What a restart costs, in the words of every face. lost: what was seen that it would destroy (see.losses); None where
    nobody looked."""
    if lost is None:
        return RESTARTS + ", and what lies in its own /dev/shm is lost"
    return "%s; it destroys: %s" % (RESTARTS, "; ".join(lost) or "nothing that can be seen")


def actions(config: Config, why: str, lost: Tuple[str, ...], ha: bool = False) -> Tuple[Action, ...]:
    """What restarts a container, in order, with all that it destroys. ha: the cluster's manager starts and stops it, and
    must be asked; a plain reboot would work against it."""
    if ha:
        state = ("ha-manager", "set", "ct:" + config.id, "--state")
        argvs: Tuple[Tuple[str, ...], ...] = ((*state, "stopped"), (*state, "started"))
    elif config.lock:
        argvs = (("pct", "reboot", config.id),)
    else:
        argvs = (("lxc-stop", *config.tool_options, "-t", "60"), ("lxc-start", *config.tool_options, "-d"))
    return tuple(Action(NAME, config.subject, argv, why, lost, RESTARTS) for argv in argvs)


def command(config: Config, restart: Sequence[Action], ha: bool) -> str:
    """The same as one line to paste."""
    if ha:
        # A queued stop writes "stopped" when its round comes, over what was set meanwhile: wait before asking for the start.
        return ("ha-manager set ct:%s --state stopped; until pct status %s | grep -q stopped; do sleep 1; done; "
                "ha-manager set ct:%s --state started" % ((config.id,) * 3))
    return " && ".join(shlex.join(action.argv) for action in restart)


def carry_out(host: Host, config: Config, restart: Sequence[Action], done: List[Action], id: str = "HT402") -> List[Finding]:
    """Run them in order and stop at the first that fails; what was done is added to `done`. Findings: what went wrong."""
    held = effective_keys(config.document.main).get("lock") if config.lock else None
    if held and restart:  # `pct reboot` would not mind
        return [_failed(id, restart[0], "it is not restarted while a task holds it (lock: %s)" % held.value,
                        "wait for that task to end; after a crash: pct unlock " + config.id)]
    for action in restart:
        ran = host.execute(list(action.argv), TIMEOUT)
        if ran.rc:
            text = (ran.err or ran.out).strip().splitlines() or ["exit code %d" % ran.rc]
            return [_failed(id, action, "%s failed: %s" % (" ".join(action.argv), text[-1]))]
        done.append(action)
        if action.argv[0] == "ha-manager" and not _settles(host, config.id, action.argv[-1]):
            if action.argv[-1] == "stopped":  # leave the request that was there: it shall run
                host.execute([*action.argv[:-1], "started"], TIMEOUT)
            return [_failed(id, action, "high availability has not %s it within %d s" % (action.argv[-1], TIMEOUT),
                            "ha-manager status")]
    return []


def _settles(host: Host, ct_id: str, state: str) -> bool:
    """Whether a container is stopped, or runs, before the time is over."""
    wanted = "stopped" if state == "stopped" else "running"
    for _ in range(TIMEOUT):
        if wanted in host.run(["pct", "status", ct_id]).out:
            return True
        time.sleep(1)
    return False


def _failed(id: str, action: Action, what: str, way_out: str = "") -> Finding:
    return finding(id, FAIL, action.subject, what,
                   hint=Hint(way_out or " ".join(action.argv), "host", action.costs, "apply"))
