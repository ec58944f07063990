# SPDX-License-Identifier: Apache-2.0
"""Keeps one guest running: `python -m lab.supervisor FOLDER`, in the background.

When the guest resets itself, whoever asked for it, a fresh QEMU goes on with the same disk; when it is switched off, this
process ends too. At most two guests run at once on a machine: each supervisor, and its QEMU, holds the lock of a slot.

    FOLDER/guest.json      what to run (written by lab.machine)
    FOLDER/supervisor.pid  of this process (written by lab.machine too)
    FOLDER/supervisor.log  each QEMU: its process id, how it ended
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
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
    snapshot = guest["snapshot"]
    try:
        slot = _slot(guest["slot_patience"])
    except LabError as e:
        _log(str(e))
        return 1
    signal.signal(signal.SIGTERM, _terminate)
    while True:
        append = json.loads((folder / "guest.json").read_text())["append"]  # may have changed since the last boot
        argv = qemu.command(image, folder, guest["port"], accel, append, snapshot)
        run = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[slot], text=True)
        _log("QEMU %d begins" % run.pid)
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


def _slot(patience: float) -> int:
    """An open, locked file. The lock belongs to the open file, which QEMU inherits, and so lasts as long as either."""
    folder = cache() / "slots"
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + patience
    while True:
        for number in range(SLOTS):
            fd = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                os.close(fd)
        if time.monotonic() > end:
            raise LabError("%d guests run on this machine already: 'make lab-status' shows them" % SLOTS)
        time.sleep(0.5)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
