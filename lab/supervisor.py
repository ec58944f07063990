# SPDX-License-Identifier: Apache-2.0
"""Keeps one guest running: `python -m lab.supervisor FOLDER`, in the background.

When the guest resets itself, whoever asked for it, a fresh QEMU goes on with the same disk; when it is switched off, this
process ends too. At most two guests run at once on a machine: each supervisor, and its QEMU, holds the lock of a slot.

    FOLDER/guest.json      what to run (written by lab.machine)
    FOLDER/state.json      {"supervisor": pid, "qemu": pid, "runs": number of QEMUs so far}
    FOLDER/supervisor.log  why it ended
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import IO

from lab import LabError, cache, qemu
from lab.accel import Accel
from lab.image.build import Image

SLOTS = 2


def main(folder: Path) -> int:
    guest = json.loads((folder / "guest.json").read_text())
    image, accel = Image(Path(guest["image"])), Accel(**guest["accel"])
    snapshot, runs = guest["snapshot"], 0
    try:
        slot = _slot()
    except LabError as e:
        _log(str(e))
        return 1
    signal.signal(signal.SIGTERM, _terminate)
    while True:
        runs += 1
        argv = qemu.command(image, folder, guest["port"], accel, guest["append"], snapshot)
        run = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[slot], text=True)
        state = {"supervisor": os.getpid(), "qemu": run.pid, "runs": runs}
        _write(folder / "state.json", json.dumps(state))
        try:
            reason = _until_it_ends(run)
        finally:
            run.kill()
            run.wait()
        _log("QEMU %d ended: %s, exit code %d" % (run.pid, reason, run.returncode))
        if reason != "guest-reset":
            return 0 if reason == "guest-shutdown" else 1
        snapshot = None


def _until_it_ends(run: subprocess.Popen[str]) -> str:
    """Follow QMP until QEMU closes it; the reason of its SHUTDOWN event, e.g. guest-reset, guest-shutdown."""
    commands: IO[str] | None = run.stdin
    assert commands is not None and run.stdout is not None
    reason = "no reason given"
    commands.write('{"execute": "qmp_capabilities"}\n')
    commands.flush()
    for line in run.stdout:
        message = json.loads(line)
        if message.get("event") == "SHUTDOWN":
            reason = message["data"]["reason"]
    run.wait()
    return reason


def _slot() -> int:
    """An open, locked file. The lock belongs to the open file, which QEMU inherits, and so lasts as long as either."""
    folder = cache() / "slots"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(SLOTS):
        fd = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            os.close(fd)
    raise LabError("%d guests run on this machine already: stop one (make lab-status, make lab-down)" % SLOTS)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _write(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".new")
    aside.write_text(text)
    aside.rename(path)


def _log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
