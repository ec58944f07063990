# SPDX-License-Identifier: Apache-2.0
"""`ha-manager` and what stands behind it, for containers of one node: a request is taken now and acted upon a round later.

As in pve-ha-manager (Manager.pm): `crm-command stop` is queued, and the round that takes it up also writes `state stopped`
into resources.cfg, over what was asked for in between. A round is 10 s there and 1 s here.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time

from . import guest, power
from .guest import PVE, Failure, warn

RESOURCES = PVE / "ha" / "resources.cfg"
QUEUE = PVE / "ha" / "crm_commands"
ROUND_S = 1.0
STATES = ("started", "stopped", "disabled", "ignored")
USAGE = """\
usage: ha-manager config | status | add ct:ID [--state STATE] | remove ct:ID | set ct:ID --state STATE
       ha-manager crm-command stop ct:ID TIMEOUT
"""


def services() -> dict[int, str]:
    """vmid: requested state, of the containers that HA manages (state `ignored` is none)."""
    try:
        text = RESOURCES.read_text()
    except OSError:
        return {}
    blocks = re.findall(r"^ct: *(\d+)\n((?:[ \t].*\n)*)", text + "\n", re.MULTILINE)
    found = {}
    for vmid, lines in blocks:
        state = re.search(r"^\s+state +(\w+)", lines, re.MULTILINE)
        found[int(vmid)] = state[1] if state else "started"
    return found


def managed(vmid: int) -> bool:
    return services().get(vmid, "ignored") != "ignored"


def request(vmid: int, *words: str) -> None:
    """What pct does for a guest that HA manages: ask, and return. Raises Failure."""
    sys.stdout.write(f"Requesting HA {words[0]} for CT {vmid}\n")
    sys.stdout.flush()
    if words[0] == "start":
        _set(vmid, "started")
    else:
        _queue(vmid, words[1])
    _wake()


def _write(path_text: dict[int, str]) -> None:
    RESOURCES.parent.mkdir(exist_ok=True)
    _replace(str(RESOURCES), "".join(f"ct: {vmid}\n\tstate {state}\n\n" for vmid, state in sorted(path_text.items())))


def _replace(path: str, text: str) -> None:
    temporary = f"{path}.tmp.{os.getpid()}"
    try:
        with open(temporary, "x") as out:
            out.write(text)
        os.rename(temporary, path)
    except OSError as refusal:
        raise Failure(f"unable to open file '{temporary}' - {refusal.strerror}", refusal.errno or 255)


def _set(vmid: int, state: str) -> None:
    known = services()
    if vmid not in known:
        raise Failure(f"no such resource 'ct:{vmid}'")
    if known[vmid] != state:
        _write({**known, vmid: state})


def _queue(vmid: int, timeout: str) -> None:
    before = QUEUE.read_text() if QUEUE.exists() else ""
    QUEUE.parent.mkdir(exist_ok=True)
    _replace(str(QUEUE), before + f"stop ct:{vmid} {timeout}\n")


def _wake() -> None:
    """Have the rounds go on in the background; one process does them."""
    subprocess.Popen(["/usr/bin/ha-manager", "rounds"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip


def rounds() -> int:
    """Until every service is as requested and nothing is queued. A second caller waits, then finds nothing to do."""
    power.RUN.mkdir(exist_ok=True)
    with open(power.RUN / "ha.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        while os.path.ismount(PVE):
            time.sleep(ROUND_S)
            if guest.quorate() and _round():
                break
    return 0


def _round() -> bool:
    timeouts: dict[int, int] = {}
    if QUEUE.exists() and (text := QUEUE.read_text()):
        _replace(str(QUEUE), "")
        for vmid, timeout in re.findall(r"^stop ct:(\d+) (\d+)$", text, re.MULTILINE):
            timeouts[int(vmid)] = int(timeout)
            _set(int(vmid), "stopped")
    settled = not timeouts
    for vmid, state in services().items():
        running = guest.running(vmid)
        try:
            if state == "started" and not running:
                power.start(vmid)
            elif state in ("stopped", "disabled") and running:
                timeout = timeouts.get(vmid, power.SHUTDOWN_S)
                power.stop(vmid) if timeout == 0 else power.shutdown(vmid, timeout, force=True)
        except Failure as refusal:
            warn(f"ct:{vmid}: {refusal}")
    return settled


def _status() -> None:
    sys.stdout.write(f"quorum {'OK' if guest.quorate() else 'No quorum on node!'}\n")
    sys.stdout.write(f"master {guest.node()} (active)\nlrm {guest.node()} (active)\n")
    for vmid, state in services().items():
        now = "started" if guest.running(vmid) else "stopped"
        told = now if (now == "started") is (state == "started") else f"request_{'start' if state == 'started' else 'stop'}"
        sys.stdout.write(f"service ct:{vmid} ({guest.node()}, {told})\n")


def _dispatch(argv: list[str]) -> int:
    sid = next((int(found[1]) for word in argv if (found := re.fullmatch(r"ct:(\d+)", word))), 0)
    state = argv[-1] if len(argv) > 2 and argv[-2] == "--state" and argv[-1] in STATES else ""
    if argv == ["config"]:
        sys.stdout.write("".join(f"ct:{vmid}\n\tstate {state}\n\n" for vmid, state in services().items()))
    elif argv == ["status"]:
        _status()
    elif argv == ["rounds"]:
        return rounds()
    elif argv[:1] == ["add"] and sid and (state or len(argv) == 2):
        guest.load(sid)
        _write({**services(), sid: state or "started"})
        _wake()
    elif argv[:1] == ["remove"] and sid and len(argv) == 2:
        _write({vmid: state for vmid, state in services().items() if vmid != sid})
    elif argv[:1] == ["set"] and sid and state:
        _set(sid, state)
        _wake()
    elif argv[:2] == ["crm-command", "stop"] and sid and len(argv) == 4 and argv[3].isdecimal():
        if sid not in services():
            raise Failure(f"no such resource 'ct:{sid}'")
        _queue(sid, argv[3])
        _wake()
    else:
        warn(USAGE.rstrip())
        return 255
    return 0


def main(argv: list[str]) -> int:
    try:
        return _dispatch(argv)
    except Failure as refusal:
        warn(str(refusal))
        return refusal.status
