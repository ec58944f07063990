# SPDX-License-Identifier: Apache-2.0
"""How hard a copy may work on a host that is serving: bytes a second, and how nicely.

The nice level counts for the disk too: a thread without an I/O priority of its own gets (nice + 20) / 5 of the best-effort
class (include/linux/ioprio.h, task_nice_ioprio).
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """limit: bytes a second over all threads, 0 for none. nice: 0 to 19, of the copying threads alone."""

    limit: float = 0
    nice: int = 0

    def begin(self) -> None:
        """Called by each thread that copies: on Linux the nice level belongs to the thread."""
        if self.nice:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self.nice)


FREE = Pace()
"""As fast as it goes."""


class Bucket:
    """A token bucket that threads share: it holds at most BURST seconds' worth, and may be overdrawn by one piece each."""

    BURST = 0.1

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.lock = threading.Lock()
        self.free_at = time.monotonic()

    def wait_for(self, count: int, stop: threading.Event) -> None:
        """Return when `count` more bytes may be followed by others, or when `stop` is set."""
        if not self.limit:
            return
        with self.lock:
            now = time.monotonic()
            self.free_at = max(self.free_at, now - self.BURST) + count / self.limit
            left = self.free_at - now
        if left > 0:
            stop.wait(left)
