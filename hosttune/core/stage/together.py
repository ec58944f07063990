# SPDX-License-Identifier: Apache-2.0
"""What the threads of one copy share: the bytes so far, the word to stop, and one place where their results arrive."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Callable, Iterator, Sequence

MOST_THREADS = 32
TICK = 0.25
"""Seconds between two words about progress."""


class Run:
    """The bytes of one run so far, and whether it is over."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.bytes = 0
        self.stop = False

    def add(self, count: int) -> None:
        """Count bytes; raises InterruptedError when the run is over."""
        with self.lock:
            self.bytes += count
        if self.stop:
            raise InterruptedError

    @contextlib.contextmanager
    def stopped_by_failure(self) -> Iterator[None]:
        """Whatever is raised within ends the other threads at their next piece."""
        try:
            yield
        except BaseException:
            self.stop = True
            raise


def threads_here() -> int:
    """As many threads as this process may use CPUs, at most MOST_THREADS."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0))))


def each(futures: Sequence["Future[Any]"], told: Callable[[Any], None], tick: Callable[[], None]) -> None:
    """told(result) for each as it ends and tick() some times a second, both in this thread. The first failure is raised
    after the results that came with it are told; what has not begun then never does."""
    pending = set(futures)
    try:
        while pending:
            ready, pending = wait(pending, TICK, FIRST_COMPLETED)
            failed = [e for e in (future.exception() for future in ready) if e]
            tick()
            for future in ready:
                if not future.exception():
                    told(future.result())
            if failed:
                raise failed[0]
    finally:
        for future in pending:
            future.cancel()
