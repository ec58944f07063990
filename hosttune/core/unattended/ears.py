# SPDX-License-Identifier: Apache-2.0
"""One wait for all that is heard. What is announced (uevents) wakes at once; what is only done to a GPU's files (inotify) a
moment later and then seldom, so that a program which opens and closes nodes all day costs one look a second."""

from __future__ import annotations

import select
import time
from typing import Callable, List, Optional, Union

from .inotify import GpuFiles
from .uevents import LOST, Event, Uevents

SETTLE = 0.05
"""Seconds from the first quiet event to the look: a process that ends closes its nodes one after the other."""
APART = 1.0
"""Seconds between two looks on quiet events, at least."""


class Ears:
    """The kernel's announcements and, where given, the files of the GPUs."""

    def __init__(self, uevents: Uevents, files: Optional[GpuFiles] = None) -> None:
        self._uevents, self._files = uevents, files
        self._last = -APART

    def close(self) -> None:
        """Stop listening."""
        for ear in (self._uevents, self._files):
            if ear:
                ear.close()

    def wait(self, seconds: Optional[float], wakes: Callable[[Event], bool]) -> List[Event]:
        """All events that `wakes` takes and that are there by now; waits for the first, at most so long. [] when none came."""
        now = time.monotonic()
        limit = None if seconds is None else now + seconds
        calm: Optional[float] = None
        while True:
            found = [event for event in self._uevents.drain() if event is LOST or wakes(event)]
            now = time.monotonic()
            over = limit is not None and now >= limit
            if found or over or calm is not None and now >= calm:
                quiet = [event for event in self._files.drain() if wakes(event)] if self._files else []
                self._last = now if quiet else self._last
                if found or quiet or over:
                    return quiet + found
                calm = None  # woken by what is nobody's concern
            until = min((at for at in (limit, calm) if at is not None), default=None)
            # Once a first quiet event is there the next ones need not wake anybody: they wait in their queue.
            ears: List[Union[Uevents, GpuFiles]] = [self._uevents]
            if self._files and calm is None:
                ears.append(self._files)
            ready, _, _ = select.select(ears, [], [], None if until is None else max(0.0, until - now))
            if self._files in ready:
                calm = max(time.monotonic() + SETTLE, self._last + APART)
