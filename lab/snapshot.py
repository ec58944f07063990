# SPDX-License-Identifier: Apache-2.0
"""The booted guest, saved: resuming it takes some two seconds, booting it half a minute under emulation."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path

from lab import accel, needs, qemu, say
from lab.image.build import Image
from lab.machine import Machine

NAME = "ready"


def ready(image: Image) -> Path:
    """A disk with the snapshot `ready` in it: first boot, nothing done yet, container 200 up. Made now if need be.

    It belongs to one image, one command line and one version of QEMU.
    """
    needs.to_run(image.folder)
    how = accel.choose(image.kernel)
    words = "\0".join(qemu.command(image, Path(), 0, how))
    path = image.folder / f"ready-{how.name}-{_qemu_version()}-{hashlib.sha256(words.encode()).hexdigest()[:8]}.qcow2"
    with open(image.folder / "ready.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _make(image, path)
    return path


def _make(image: Image, path: Path) -> None:
    say("booting the image once, to resume it from then on: about half a minute")
    machine = Machine(f"first-{os.getpid()}", image).create()
    try:
        machine.start(slot_patience=600)
        machine.settle()
        machine.run("pct", "exec", "200", "--", "systemctl", "is-system-running", "--wait")
        machine.save(NAME)
        machine.stop()
        aside = path.with_name(path.name + ".new")
        subprocess.run(["cp", "--reflink=auto", "--sparse=always", machine.disk, aside], check=True)
        aside.rename(path)
    finally:
        machine.destroy()


def resume(name: str, image: Image) -> Machine:
    """A guest of that name from the snapshot. It costs 300 MB of disk; destroy() takes them back."""
    machine = Machine(name, image).create(ready(image))
    return machine.start(snapshot=NAME)


def _qemu_version() -> str:
    done = subprocess.run(["qemu-system-x86_64", "--version"], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.split("version ")[1].split()[0]
