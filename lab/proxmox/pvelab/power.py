# SPDX-License-Identifier: Apache-2.0
"""Start, stop, shutdown and reboot of a container, as PVE orders the steps."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from . import conf, guest, lxcconfig
from .guest import Failure, warn

RUN = Path("/run/pve")
SHUTDOWN_S = 60


def start(vmid: int) -> None:
    """`pct start`. Order: pending changes, the LXC config, the pre-start hookscript, LXC. Raises Failure."""
    guest.load(vmid)
    if guest.running(vmid):
        raise Failure(f"CT {vmid} already running")
    guest.need_quorum()
    with guest.locked(vmid):
        _start(vmid, skip_lock=False)


def _start(vmid: int, skip_lock: bool) -> None:
    config = guest.load(vmid)
    if config.get("template") == "1":
        raise Failure("you can't start a CT if it's a template")
    if not skip_lock:
        guest.check_lock(config, allow="mounted")
    if guest.apply_pending(config):
        guest.save(vmid, config)
    lxcconfig.update(vmid, config)
    hookscript(vmid, config, "pre-start", fatal=True)
    RUN.mkdir(exist_ok=True)
    errors = RUN / f"ct-{vmid}.stderr"
    # Files, no pipes: LXC's monitor keeps what it inherits for as long as the container runs.
    with open(errors, "w") as log:
        done = subprocess.run(["lxc-start", "-d", "-n", str(vmid), "-l", "INFO", "-o", str(RUN / f"ct-{vmid}.log")],
                              stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # fmt: skip
    if done.returncode != 0:
        told = _complaints(RUN / f"ct-{vmid}.log") or errors.read_text()
        raise Failure(f"{told.rstrip()}\nstartup for container '{vmid}' failed".lstrip())
    hookscript(vmid, config, "post-start")


def _complaints(log: Path) -> str:
    """LXC's own errors and what the hooks said: the file is appended to, so from the last start on."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    begin = max((n for n, line in enumerate(lines) if "lxc_start" in line and "INFO" in line), default=0)
    return "\n".join(line for line in lines[begin:] if " ERROR " in line or "produced output" in line)


def stop(vmid: int) -> None:
    """`pct stop`: all processes killed."""
    _must_run(vmid)
    with guest.locked(vmid):
        config = guest.load(vmid)
        guest.check_lock(config, allow="mounted")
        hookscript(vmid, config, "pre-stop")
        _lxc_stop(vmid, "--kill")
        _after_stop(vmid, config)


def shutdown(vmid: int, timeout: int = SHUTDOWN_S, force: bool = False) -> None:
    """`pct shutdown`: asked politely; killed after `timeout` seconds only if `force`."""
    _must_run(vmid)
    with guest.locked(vmid):
        config = guest.load(vmid)
        guest.check_lock(config)
        hookscript(vmid, config, "pre-stop")
        _lxc_stop(vmid, "--timeout", str(timeout), *(() if force else ("--nokill",)))
        _after_stop(vmid, config)


def reboot(vmid: int, timeout: int = SHUTDOWN_S) -> None:
    """`pct reboot`: shut down, killed if need be, and started in full. `lock:` is not looked at."""
    if not guest.running(vmid):
        guest.load(vmid)
        raise Failure(f"VM {vmid} not running")
    with guest.locked(vmid):
        config = guest.load(vmid)
        hookscript(vmid, config, "pre-stop")
        _lxc_stop(vmid, "--timeout", str(timeout))
        _after_stop(vmid, config)
        guest.need_quorum()
        _start(vmid, skip_lock=True)


def _must_run(vmid: int) -> None:
    guest.load(vmid)
    if not guest.running(vmid):
        raise Failure(f"CT {vmid} not running")


def _lxc_stop(vmid: int, *how: str) -> None:
    done = guest.lxc("lxc-stop", vmid, *how)
    end = time.monotonic() + 10
    while guest.running(vmid):  # lxc-stop returns before the monitor has run the post-stop hook
        if done.returncode != 0 or time.monotonic() > end:
            raise Failure(f"{done.stderr}container did not stop".strip())
        time.sleep(0.02)


def _after_stop(vmid: int, config: conf.Config) -> None:
    fresh = guest.load(vmid)
    if guest.apply_pending(fresh):
        guest.save(vmid, fresh)
    hookscript(vmid, config, "post-stop")


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
