# SPDX-License-Identifier: Apache-2.0
"""What a unit starts, from the archive that the boot units bring (corezip.archive): `python3 -I FILE knobs`."""

from __future__ import annotations

import contextlib
import sys
from typing import FrozenSet, Sequence

from ..door.host import Host
from ..door.live import LiveHost
from ..model import Refused
from ..pci import bus
from .keeping import Say
from .stages import WATCH, run


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # to whoever watches the boot, and before a time limit may end this process


def main(words: Sequence[str]) -> int:
    """What a unit starts: one stage, told to the journal line by line."""
    try:
        if words and words[0] == WATCH:
            return watching(LiveHost(), _tell)
        return run(LiveHost(), words[0] if words else "", _tell)
    except Refused as e:
        sys.stderr.write("%s\n" % e)
        return 2


def watching(host: Host, say: Say) -> int:
    """The watch on this machine's kernel, until it is ended from outside."""
    from . import ears, inotify, uevents, watch  # a boot starts without them

    files = None
    try:
        files = inotify.GpuFiles(say)
    except OSError as e:
        say(inotify.deaf(e))

    def listen(forget: bool) -> FrozenSet[str]:
        if files is None:
            return frozenset()
        if forget:
            files.drain()
        with contextlib.suppress(OSError):  # a function that goes away while it is looked at: its event comes
            return files.listen(gpu.bdf for gpu in bus.gpus(host))
        return frozenset()

    ear = ears.Ears(uevents.Uevents(), files)
    try:
        return watch.watch(host, say, lambda seconds: ear.wait(seconds, watch.wakes), listen)
    finally:
        ear.close()
