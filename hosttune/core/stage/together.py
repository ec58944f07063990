# SPDX-License-Identifier: Apache-2.0
"""What the threads of one run share: the bytes so far, the pace, the word to stop, and one place where results arrive."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import Empty, SimpleQueue
from typing import Any, Callable, Collection, Iterator, List, Protocol, Sequence

from .pace import FREE, Bucket, Pace
from .reading import PIECE
from .schedule import Part, Schedule

MOST_THREADS = 32
TICK = 0.25
"""Seconds between two words about progress."""


class Run:
    """The bytes of one run so far, and whether it is over."""

    def __init__(self, pace: Pace = FREE) -> None:
        self.lock = threading.Lock()
        self.bytes = 0
        self.stop = threading.Event()
        self.bucket = Bucket(pace.limit)

    def add(self, count: int) -> None:
        """Count bytes, and wait as the pace wants it; raises InterruptedError when the run is over."""
        with self.lock:
            self.bytes += count
        self.bucket.wait_for(count, self.stop)
        if self.stop.is_set():
            raise InterruptedError

    @contextlib.contextmanager
    def stopped_by_failure(self) -> Iterator[None]:
        """Whatever is raised within ends the other threads at their next piece."""
        try:
            yield
        except BaseException:
            self.stop.set()
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


class Work(Protocol):
    """A file that is gone through by chunks. count: how many. in_order: it has one hash, so each chunk after the other. there:
    chunks that need no copy."""

    count: int
    in_order: bool
    there: Collection[int]

    def do(self, part: Part, memory: mmap.mmap, run: Run) -> None:
        """One part; `memory` is PIECE bytes of the thread's own."""

    def seal(self) -> Any:
        """All parts are done: what is to be told of this file."""


def share_out(pool: ThreadPoolExecutor, threads: int, files: Sequence[Work], run: Run, told: Callable[[Any], None],
              tick: Callable[[int], None], hashed: bool = True, ahead: bool = True) -> None:
    """Go through all files (schedule.py says in which order). told(what `seal` gave) for each and tick(bytes so far) some
    times a second, both in this thread. The first failure is raised when all threads have ended and what is whole is told."""
    threads = max(1, min(threads, sum(file.count for file in files)))
    there = [file.there for file in files]
    schedule = Schedule([(file.count, file.in_order) for file in files], threads, hashed, ahead, there)
    crew = _Crew(files, schedule, run)
    working = [pool.submit(crew.work) for _ in range(threads)]
    try:
        crew.listen(threads, told, tick)
    finally:
        crew.stop()
        wait(working)
    if crew.failed:
        raise crew.failed[0]


class _Crew:
    """The threads, and the queue in which they tell what is whole: the file's number and what its seal gave; a number of -1
    from each thread that has ended."""

    def __init__(self, files: Sequence[Work], schedule: Schedule, run: Run) -> None:
        self.files, self.schedule, self.run = files, schedule, run
        self.said: "SimpleQueue[Any]" = SimpleQueue()
        self.failed: List[BaseException] = []

    def listen(self, running: int, told: Callable[[Any], None], tick: Callable[[int], None]) -> None:
        """Until all threads have ended."""
        ticked = 0.0
        while running:
            number, what = -1, None
            with contextlib.suppress(Empty):
                number, what = self.said.get(timeout=TICK)
                running -= number < 0
            if number >= 0 or not running or time.monotonic() - ticked >= TICK:
                ticked = time.monotonic()
                tick(self.run.bytes)
            if number >= 0:
                told(what)

    def work(self) -> None:
        """A thread's life."""
        try:
            with mmap.mmap(-1, PIECE) as memory:  # page-aligned: O_DIRECT wants it, and a copy never straddles pages
                part = self.schedule.take()
                while part:
                    file = self.files[part.file]
                    file.do(part, memory, self.run)
                    if self.schedule.done(part):
                        self.said.put((part.file, file.seal()))
                    part = self.schedule.take()
        except InterruptedError:  # by another thread's failure, or by the caller's
            pass
        except BaseException as e:
            self.failed.append(e)
            self.stop()
        finally:
            self.said.put((-1, None))

    def stop(self) -> None:
        """Nothing more is handed out, and who is at work ends at the next piece."""
        self.run.stop.set()
        self.schedule.end()
