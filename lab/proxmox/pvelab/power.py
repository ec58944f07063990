# SPDX-License-Identifier: Apache-2.0
"""Start, stop, shutdown and reboot of a container, as PVE orders the steps."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from . import conf, guest, lxcconfig
from .guest import Failure, warn

RUN = Path("/run/pve")
SHUTDOWN_S = 60
_ERROR = re.compile(r" ERROR +\S+ - \S+?:(\w+:\d+ - .*)$")


def start(vmid: int, debug: bool = False) -> None:
    """`pct start`. Order: pending changes, the LXC config, the pre-start hookscript, LXC. Raises Failure."""
    guest.load(vmid)
    if guest.running(vmid):
        raise Failure(f"CT {vmid} already running")
    guest.need_quorum()
    with guest.locked(vmid):
        _start(vmid, False, debug)


def _start(vmid: int, skip_lock: bool, debug: bool) -> None:
    config = guest.load(vmid)
    if config.get("template") == "1":
        raise Failure("you can't start a CT if it's a template")
    if not skip_lock:
        guest.check_lock(config, allow="mounted")
    if guest.apply_pending(config):
        guest.save(vmid, config)
    lxcconfig.update(vmid, config)
    hookscript(vmid, config, "pre-start", fatal=True)
    _lxc_start(vmid, debug)
    hookscript(vmid, config, "post-start")


def _lxc_start(vmid: int, debug: bool = False) -> None:
    RUN.mkdir(exist_ok=True)
    errors, log = RUN / f"ct-{vmid}.stderr", RUN / f"ct-{vmid}.log"
    log.unlink(missing_ok=True)
    # Files, no pipes: LXC's monitor keeps what it inherits for as long as the container runs.
    with open(errors, "w") as out:
        done = subprocess.run(["lxc-start", "-d", "-n", str(vmid), "-l", "DEBUG", "-o", str(log)],
                              stdin=subprocess.DEVNULL, stdout=out, stderr=out)  # fmt: skip
    if done.returncode != 0:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        told = lines if debug else [found[1] for line in lines if (found := _ERROR.search(line))]
        raise Failure("\n".join([*told, f"startup for container '{vmid}' failed"]))


def again(vmid: int) -> None:
    """After a reboot from inside, once the old monitor is gone. No hookscript runs and no lock is taken."""
    while _monitor(vmid):
        time.sleep(0.02)
    _lxc_start(vmid)


def stop(vmid: int) -> None:
    """`pct stop`: all processes killed."""
    _must_run(vmid)
    with guest.locked(vmid):
        config = guest.load(vmid)
        guest.check_lock(config, allow="mounted")
        hookscript(vmid, config, "pre-stop")
        _lxc_stop(vmid, "--kill")
        hookscript(vmid, config, "post-stop")


def shutdown(vmid: int, timeout: int = SHUTDOWN_S, force: bool = False) -> None:
    """`pct shutdown`: asked politely; killed after `timeout` seconds only if `force`."""
    _must_run(vmid)
    with guest.locked(vmid):
        config = guest.load(vmid)
        guest.check_lock(config)
        hookscript(vmid, config, "pre-stop")
        _lxc_stop(vmid, "--timeout", str(timeout), *(() if force else ("--nokill",)))
        hookscript(vmid, config, "post-stop")


def reboot(vmid: int, timeout: int = SHUTDOWN_S) -> None:
    """`pct reboot`: shut down, killed if need be, and started in full. `lock:` is not looked at."""
    if not guest.running(vmid):
        guest.load(vmid)
        raise Failure(f"VM {vmid} not running")
    with guest.locked(vmid):
        config = guest.load(vmid)
        hookscript(vmid, config, "pre-stop")
        _lxc_stop(vmid, "--timeout", str(timeout))
        hookscript(vmid, config, "post-stop")
        guest.need_quorum()
        _start(vmid, True, False)


def _must_run(vmid: int) -> None:
    guest.load(vmid)
    if not guest.running(vmid):
        raise Failure(f"CT {vmid} not running")


def _monitor(vmid: int) -> list[int]:
    """Process ids of LXC's monitor and of the hooks that it runs; empty once it has ended."""
    try:
        return [int(pid) for pid in Path(f"/sys/fs/cgroup/lxc.monitor/{vmid}/cgroup.procs").read_text().split()]
    except OSError:
        return []


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _lxc_stop(vmid: int, *how: str) -> None:
    """Stop it and wait for the monitor, which runs the post-stop hook after lxc-stop has returned."""
    monitor = _monitor(vmid)
    done = guest.lxc("lxc-stop", vmid, *how)
    end = time.monotonic() + 20
    while guest.running(vmid) or any(_alive(pid) for pid in monitor):
        if done.returncode != 0 or time.monotonic() > end:
            raise Failure(f"{done.stderr}container did not stop".strip())
        time.sleep(0.02)


def hookscript(vmid: int, config: conf.Config, phase: str, fatal: bool = False) -> None:
    """Run the guest's hookscript (`local:snippets/NAME`); only a failing pre-start aborts."""
    name = config.get("hookscript")
    if not name:
        return
    script = Path("/var/lib/vz") / name.removeprefix("local:")
    try:
        if not os.access(script, os.X_OK):
            raise Failure(f"hookscript '{name}' does not exist or is not executable")
        with tempfile.TemporaryFile() as nothing:
            done = subprocess.run([script, str(vmid), phase], stdin=nothing)
        if done.returncode != 0:
            raise Failure(f"hookscript error for {vmid} on {phase}: command '{script} {vmid} {phase}' failed: "
                          f"exit code {done.returncode}")  # fmt: skip
    except (Failure, OSError) as refusal:
        if fatal:
            raise Failure(str(refusal))
        warn(str(refusal))
