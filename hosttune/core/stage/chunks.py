# SPDX-License-Identifier: Apache-2.0
"""Digests of the parts of a file: verified side by side, and repaired alone.

One sha256 of a whole file is one thread's work (1.2 to 1.6 GB/s with SHA-NI), however many cores there are; a digest for each
CHUNK makes any file as parallel as many small ones, and a damaged chunk the only one that has to come from the source again.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Collection, Dict, List, Sequence, Tuple

from ..model import Refused
from .pace import FREE, Pace
from .reading import CHUNK, PIECE, Job, Source
from .schedule import Part
from .together import Run, each, share_out, threads_here

Told = Callable[[Tuple[str, str]], None]
Ticked = Callable[[int], None]


def chunk_digests(path: str, chunk: int = CHUNK, threads: int = 0, tick: Ticked = lambda count: None) -> List[str]:
    """sha256 of each `chunk` bytes of a file, the last one shorter; [] for an empty file. threads: 0 for one a CPU.
    tick(bytes so far) some times a second, in the calling thread. Raises OSError."""
    found: List[_Hashed] = []
    file = _Hashed(path, os.stat(path).st_size, "", (), chunk)
    _hash([file], threads or threads_here(), found.append, tick)
    return [file.digests[number] for number in sorted(file.digests)]


def compare(files: Sequence[Tuple[str, int, str, Sequence[str], int]], threads: int, told: Told, tick: Ticked,
            pace: Pace = FREE) -> Dict[str, Tuple[str, ...]]:
    """Read files and compare digests; each is (path, size, sha256, chunks, chunk size). The digests of those that have none to
    be compared with, chunk by chunk; "" for a chunk that is not all there.

    told((path, what is wrong or "")) once a chunk, or once a file that has one hash or none. Raises OSError.
    """
    new: Dict[str, Tuple[str, ...]] = {}

    def judge(file: _Hashed) -> None:
        if not file.want and not file.wanted:
            new[file.path] = tuple(file.digests[number] for number in sorted(file.digests))
        for wrong in file.judged():
            told((file.path, wrong))

    _hash([_Hashed(*row) for row in files], threads, judge, tick, pace)
    return new


def _hash(files: List["_Hashed"], threads: int, told: Callable[["_Hashed"], None], tick: Ticked, pace: Pace = FREE) -> None:
    with ThreadPoolExecutor(threads, initializer=pace.begin) as pool:
        share_out(pool, threads, files, Run(pace), told, tick, ahead=False)


class _Hashed:
    """A file that is read and hashed: as a whole (in_order), or each chunk for itself."""

    there: Collection[int] = ()

    def __init__(self, path: str, size: int, sha256: str, chunks: Sequence[str], chunk: int) -> None:
        self.path, self.size, self.want, self.wanted = path, size, sha256, chunks
        self.in_order = bool(sha256)
        self.chunk = CHUNK if sha256 else chunk
        self.count = max(1, -(-size // self.chunk))
        self.total: Any = hashlib.sha256()
        self.digests: Dict[int, str] = {}
        self.ends = size

    def do(self, part: Part, memory: mmap.mmap, run: Run) -> None:
        """Hash one chunk. A file that has become shorter is told by `ends`."""
        at, end = part.number * self.chunk, min((part.number + 1) * self.chunk, self.size)
        digest = self.total if self.in_order else hashlib.sha256()
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with memoryview(memory) as buffer:
                while at < end:
                    count = os.preadv(fd, [buffer[: min(PIECE, end - at)]], at)
                    if not count:
                        self.ends = min(self.ends, at)
                        break
                    with buffer[:count] as view:
                        digest.update(view)
                    at += count
                    run.add(count)
        finally:
            os.close(fd)
        if not self.in_order and self.size:
            self.digests[part.number] = digest.hexdigest() if at == end else ""

    def seal(self) -> "_Hashed":
        """Itself, hashed."""
        return self

    def judged(self) -> List[str]:
        """What is wrong with each chunk (with the whole, if that has the hash), "" for nothing."""
        if self.want or not self.wanted:
            return [self._wrong(0, self.size, not self.want or self.total.hexdigest() == self.want)]
        return [self._wrong(number * self.chunk, min((number + 1) * self.chunk, self.size), self.digests.get(number) == want)
                for number, want in enumerate(self.wanted)]

    def _wrong(self, start: int, end: int, same: bool) -> str:
        if self.ends < end:
            return "ends at byte %d" % self.ends
        return "" if same else "bytes %d to %d are not what was copied" % (start, end)


def copy_chunks(source: str, target: str, chunks: Sequence[int], chunk: int = CHUNK, root: str = "/", threads: int = 0,
                tick: Ticked = lambda count: None) -> List[str]:
    """Copy these chunks (by number, from 0) of `source` over the same bytes of `target`, in place: who has the target mapped
    sees the bytes come right. The digests of what was read, in the order of `chunks`; the caller compares.

    Both files are of one size, else Refused. source: real path below `root`, no link. The target's time is the source's when
    all is done and the time of the write before: a repair that was killed is not taken for a whole file. Raises OSError.
    """
    status = os.stat(source)
    job = Job(source, target, root, status.st_size, status.st_mtime)
    found: Dict[int, str] = {}
    run = Run()
    with contextlib.closing(Source(job)) as given:
        to = os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(to).st_size
            if size != job.size:
                raise Refused("it is %d bytes long, and its source %d" % (size, job.size), target, "copy all of it again")
            with ThreadPoolExecutor(threads or threads_here()) as pool, run.stopped_by_failure():
                futures = [pool.submit(_copied, given, to, number, chunk, run) for number in set(chunks)]
                each(futures, lambda done: found.update([done]), lambda: tick(run.bytes))
            given.check()
            os.utime(to, ns=(status.st_mtime_ns, status.st_mtime_ns))
        finally:
            os.close(to)
    return [found[number] for number in chunks]


def _copied(source: Source, target: int, number: int, chunk: int, run: Run) -> Tuple[int, str]:
    digest, end = hashlib.sha256(), min((number + 1) * chunk, source.job.size)
    with mmap.mmap(-1, PIECE) as memory, memoryview(memory) as buffer:
        for at in range(number * chunk, end, PIECE):
            with buffer[: min(PIECE, end - at)] as view:
                source.read(view, at)
                digest.update(view)
                write(target, view, at)
                run.add(len(view))
    return number, digest.hexdigest()


def write(fd: int, view: memoryview, at: int) -> None:
    """All of the view. Raises OSError."""
    done = os.pwrite(fd, view, at)
    while done < len(view):
        done += os.pwrite(fd, view[done:], at + done)
